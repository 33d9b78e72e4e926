"""The orchestrator: owns the truth about the text and drives the draft-verify loop. No torch."""
