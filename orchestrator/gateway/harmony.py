"""Marks of Harmony, in which gpt-oss writes: messages with a header that names their channel."""

from __future__ import annotations

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
ALL = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)
ROLE = "assistant"
FUNCTIONS = "functions."  # whom a call is addressed to
CALL_BEGIN = f"{CHANNEL}commentary to={FUNCTIONS}"


def is_shown(template: str) -> bool:
    """Whether a chat template writes so."""
    return CHANNEL in template and MESSAGE in template
