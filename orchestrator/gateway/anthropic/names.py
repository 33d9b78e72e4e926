"""Names of a chat's fields in the Messages API."""

from __future__ import annotations

from orchestrator.gateway.renaming import Renaming

NAMES = (
    ("max_completion_tokens", "max_tokens"),
    ("continue_final_message", "messages"),
    ("messages", "messages"),
    ("stop", "stop_sequences"),
    ("response_format", "output_config.format"),
    ("reasoning_effort", "output_config.effort"),
    ("tool_choice.function", "tool_choice"),
    ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
)
# A turn may have become several messages, so errors do not say in which message they are.
own_names = Renaming(NAMES, wholes=("messages",))
