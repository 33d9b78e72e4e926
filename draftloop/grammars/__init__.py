"""Grammars as llguidance follows them, for the orchestrator and the model services."""
