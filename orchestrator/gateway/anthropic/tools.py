"""Anthropic's fields for tools, and their translation to a chat's."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from draftloop.errors import InvalidInput
from orchestrator.gateway.body import Body, EchoedBody
from orchestrator.gateway.errors import Unsupported
from orchestrator.gateway.tools.schemas import FunctionName

IGNORED_FIELDS = (
    "cache_control", "strict", "defer_loading", "eager_input_streaming", "input_examples",
    "allowed_callers",
)  # fmt: skip
# Beginnings of the types of tools that run on Anthropic's servers: no model here would call them.
SERVER_TOOL_PREFIXES = (
    "web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset", "advisor_",
)  # fmt: skip
CHAT_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class MessagesTool(EchoedBody):
    """A tool that the client runs."""

    ignored_fields = IGNORED_FIELDS
    type: Literal["custom"] = "custom"
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="JSON Schema of an object")

    @property
    def chat_form(self) -> dict[str, Any]:
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
    def _check_name_place(self) -> Self:
        if (self.type == "tool") != (self.name is not None):
            rule = "must be given with type tool, and with no other"
            raise InvalidInput("tool_choice.name", rule, f"type {self.type}")
        return self

    @property
    def chat_form(self) -> dict[str, Any]:
        """The same as a chat's fields `tool_choice` and `parallel_tool_calls`."""
        function_choice: Any = {"type": "function", "function": {"name": self.name}}
        fields: dict[str, Any] = {"tool_choice": CHAT_CHOICES.get(self.type, function_choice)}
        if self.disable_parallel_tool_use is not None:
            fields["parallel_tool_calls"] = not self.disable_parallel_tool_use
        return fields


def drop_server_tools(tools: Any) -> Any:
    """The tools without those that run on Anthropic's servers.

    Raises Unsupported for tools without a schema, which only Anthropic's models know.
    """
    if not isinstance(tools, list):
        return tools
    client_tools = []
    for index, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind.startswith(SERVER_TOOL_PREFIXES):
            continue
        if isinstance(kind, str) and kind != "custom":
            rule = "must be custom, with an input_schema: the model does not know this tool"
            raise Unsupported(f"tools[{index}].type", rule, kind)
        client_tools.append(tool)
    return client_tools
