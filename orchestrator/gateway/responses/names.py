"""What a chat's fields are called in the Responses API."""

from __future__ import annotations

from orchestrator.gateway.renaming import Renaming

NAMES = (
    ("max_tokens", "max_output_tokens"),
    ("max_completion_tokens", "max_output_tokens"),
    ("messages", "input"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("tool_choice.function", "tool_choice"),
    ("tool_choice.allowed_tools", "tool_choice"),
)
# Several items may have become one message: which one is not told.
own_names = Renaming(NAMES, wholes=("input",))
