"""The orchestrator: owns the committed tokens and drives the draft-verify loop. No torch."""
