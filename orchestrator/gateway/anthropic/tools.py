"""Anthropic's fields for tools, and their translation to a chat's."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from draftloop.errors import InvalidInput
from orchestrator.gateway.body import Body, SentBack
from orchestrator.gateway.errors import Unsupported
from orchestrator.gateway.tools.schemas import FunctionName

OF_NO_EFFECT = (
    "cache_control", "strict", "defer_loading", "eager_input_streaming", "input_examples",
    "allowed_callers",
)  # fmt: skip
# Beginnings of the types of tools that run on Anthropic's servers: no model here would call them.
SERVERS_OWN = (
    "web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset", "advisor_",
)  # fmt: skip
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class MessagesTool(SentBack):
    """A tool that the client runs."""

    of_no_effect = OF_NO_EFFECT
    type: Literal["custom"] = "custom"
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="JSON Schema of an object")

    @property
    def as_in_chats(self) -> dict[str, Any]:
        """The tool as a chat's function."""
        function = {
            "name": self.name, "description": self.description, "parameters": self.input_schema,
        }  # fmt: skip
        return {"type": "function", "function": function}


class Choice(Body):
    """Anthropic's `tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _name_where_it_belongs(self) -> Self:
        if (self.type == "tool") != (self.name is not None):
            rule = "must be given with type tool, and with no other"
            raise InvalidInput("tool_choice.name", rule, f"type {self.type}")
        return self

    @property
    def as_in_chats(self) -> dict[str, Any]:
        """The same as a chat's fields `tool_choice` and `parallel_tool_calls`."""
        chosen: Any = {"type": "function", "function": {"name": self.name}}
        said: dict[str, Any] = {"tool_choice": CHOICES.get(self.type, chosen)}
        if self.disable_parallel_tool_use is not None:
            said["parallel_tool_calls"] = not self.disable_parallel_tool_use
        return said


def without_servers_own(tools: Any) -> Any:
    """The tools without those that run on Anthropic's servers.

    Raises Unsupported for tools without a schema, which only Anthropic's models know.
    """
    if not isinstance(tools, list):
        return tools
    own = []
    for place, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind.startswith(SERVERS_OWN):
            continue
        if isinstance(kind, str) and kind != "custom":
            rule = "must be custom, with an input_schema: the model does not know this tool"
            raise Unsupported(f"tools[{place}].type", rule, kind)
        own.append(tool)
    return own
