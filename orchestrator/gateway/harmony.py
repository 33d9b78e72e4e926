"""Marks of Harmony, gpt-oss's format: messages whose header names their channel."""

from __future__ import annotations

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
ALL = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)
ROLE = "assistant"
FUNCTIONS = "functions."  # before the name of the function that a call is addressed to
CALL_BEGIN = f"{CHANNEL}commentary to={FUNCTIONS}"


def uses_harmony(template: str) -> bool:
    """Whether a chat template writes Harmony."""
    return CHANNEL in template and MESSAGE in template
