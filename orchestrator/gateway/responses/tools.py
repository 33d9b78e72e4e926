"""What a response may call, in OpenAI's words: functions, also those that share a namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from orchestrator.gateway.body import Body, ListOf, by_type
from orchestrator.gateway.tools.schemas import Function, FunctionName


class ResponseTool(Function):
    """A function that may be called; all in one object."""

    type: Literal["function"]
    defer_loading: bool | None = Field(None, description="of no effect: all are told at once")
    allowed_callers: ListOf[str] | None = Field(
        None, description="of no effect: the model is the only one that calls"
    )
    output_schema: dict[str, Any] | None = Field(None, description="of no effect")

    @property
    def as_in_chats(self) -> dict[str, Any]:
        """With what is said of the function in an object of its own."""
        function = self.model_dump(include=set(Function.model_fields), exclude_none=True)
        return {"type": self.type, "function": function}


class Namespace(Body):
    """Functions with a name in common. Codex tells those of every MCP server in this way."""

    type: Literal["namespace"]
    name: FunctionName
    description: str | None = Field(
        None, description="of no effect: functions have descriptions of their own"
    )
    tools: ListOf[ResponseTool]


AnyTool = Annotated[
    Annotated[ResponseTool, Tag("item:function")] | Annotated[Namespace, Tag("item:namespace")],
    by_type("function"),
]


class ChosenResponseTool(Body):
    """`tool_choice`, where it names a function."""

    type: Literal["function"]
    name: FunctionName
    namespace: FunctionName | None = None

    @property
    def as_in_chats(self) -> dict[str, Any]:
        """With the name in an object of its own."""
        return {"type": self.type, "function": {"name": full_name(self.namespace, self.name)}}


def full_name(namespace: str | None, name: str) -> str:
    """What the model knows the function by."""
    return name if namespace is None else f"{namespace}__{name}"


def tools_as_in_chats(tools: Sequence[AnyTool]) -> list[dict[str, Any]]:
    """Chats have no namespaces: their functions are told by their full names."""
    told = []
    for tool in tools:
        for function in tool.tools if isinstance(tool, Namespace) else (tool,):
            told.append(function.as_in_chats)
            if isinstance(tool, Namespace):
                told[-1]["function"]["name"] = full_name(tool.name, function.name)
    return told


def names_in_parts(tools: Sequence[AnyTool]) -> dict[str, dict[str, str]]:
    """What calls of functions in namespaces say of whom they call, by the full names."""
    return {
        full_name(tool.name, function.name): {"name": function.name, "namespace": tool.name}
        for tool in tools
        if isinstance(tool, Namespace)
        for function in tool.tools
    }


def that_clients_run(tools: Any) -> Any:
    """Without what only OpenAI's own servers can run: no model here would call it."""
    told = _of_types(tools, (None, "function", "namespace"))
    for place, tool in enumerate(told if isinstance(told, list) else ()):
        if isinstance(tool, dict) and tool.get("type") == "namespace":
            functions = _of_types(tool.get("tools"), (None, "function"))
            told[place] = {**tool, "tools": functions}
    return told


def _of_types(tools: Any, types: Sequence[str | None]) -> Any:
    if not isinstance(tools, list):
        return tools
    return [tool for tool in tools if not isinstance(tool, dict) or tool.get("type") in types]
