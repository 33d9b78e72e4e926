"""Grammars in the words of llguidance: for the orchestrator and the model services."""
