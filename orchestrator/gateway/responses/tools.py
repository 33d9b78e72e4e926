"""What a response may call, in OpenAI's words: functions and tools that take text, also those that
share a namespace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Tag, field_validator

from orchestrator.gateway.body import Body, ListOf, by_type
from orchestrator.gateway.responses.custom_input import ARGUMENTS
from orchestrator.gateway.tools.schemas import Function, FunctionName

CALLED = (None, "function", "custom")


class Hinted(Body):
    """What both kinds of tools may say besides."""

    defer_loading: bool | None = Field(None, description="of no effect: all are told at once")
    allowed_callers: ListOf[str] | None = Field(
        None, description="of no effect: the model is the only one that calls"
    )


class ResponseTool(Hinted, Function):
    """A function that may be called; all in one object."""

    type: Literal["function"]
    output_schema: dict[str, Any] | None = Field(None, description="of no effect")

    @property
    def as_in_chats(self) -> dict[str, Any]:
        """With what is said of the function in an object of its own."""
        function = self.model_dump(include=set(Function.model_fields), exclude_none=True)
        return {"type": self.type, "function": function}


class InputFormat(Body):
    """What the text is that a custom tool takes."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = Field(None, description="of the definition")
    definition: str | None = Field(None, description="the model is told of it, and not held to it")


class CustomTool(Hinted):
    """A tool of the client's that takes a text; to the model a function of one argument."""

    type: Literal["custom"]
    name: FunctionName
    description: str | None = None
    format: InputFormat | None = None

    @property
    def as_in_chats(self) -> dict[str, Any]:
        """As a function, which is told what its text must look like."""
        function = {"name": self.name, "description": self._told, "parameters": ARGUMENTS}
        return {"type": "function", "function": function}

    @property
    def _told(self) -> str | None:
        if self.format is None or self.format.definition is None:
            return self.description
        regex = self.format.syntax == "regex"
        kind = "regular expression" if regex else "grammar in Lark's notation"
        form = f"`input` must fit this {kind}:\n{self.format.definition}"
        return f"{self.description}\n\n{form}" if self.description else form


OneTool = Annotated[
    Annotated[ResponseTool, Tag("item:function")] | Annotated[CustomTool, Tag("item:custom")],
    by_type("function"),
]


class Namespace(Body):
    """Tools with a name in common. Codex tells those of every MCP server in this way."""

    type: Literal["namespace"]
    name: FunctionName
    description: str | None = Field(
        None, description="of no effect: functions have descriptions of their own"
    )
    tools: ListOf[OneTool]


AnyTool = Annotated[
    Annotated[ResponseTool, Tag("item:function")]
    | Annotated[CustomTool, Tag("item:custom")]
    | Annotated[Namespace, Tag("item:namespace")],
    by_type("function"),
]


class ChosenResponseTool(Body):
    """`tool_choice`, where it names a tool."""

    type: Literal["function", "custom"]
    name: FunctionName
    namespace: FunctionName | None = None

    @property
    def as_in_chats(self) -> dict[str, Any]:
        """With the name in an object of its own."""
        return {"type": "function", "function": {"name": full_name(self.namespace, self.name)}}


class AllowedResponseTools(Body):
    """`tool_choice`, where it names those that may be called: the model is shown no others."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[ListOf[ChosenResponseTool], Field(min_length=1)]

    @field_validator("tools", mode="before")
    @classmethod
    def _that_clients_run(cls, tools: Any) -> Any:
        return _of_types(tools, CALLED)

    @property
    def as_in_chats(self) -> dict[str, Any]:
        """With all but the type in an object of its own."""
        tools = [tool.as_in_chats for tool in self.tools]
        return {"type": self.type, "allowed_tools": {"mode": self.mode, "tools": tools}}


def full_name(namespace: str | None, name: str) -> str:
    """What the model knows the function by."""
    return name if namespace is None else f"{namespace}__{name}"


def tools_as_in_chats(tools: Sequence[AnyTool]) -> list[dict[str, Any]]:
    """Chats have no namespaces: their functions are told by their full names."""
    told = []
    for namespace, tool in _each(tools):
        said = tool.as_in_chats
        said["function"]["name"] = full_name(namespace, tool.name)
        told.append(said)
    return told


def names_in_parts(tools: Sequence[AnyTool]) -> dict[str, dict[str, str]]:
    """What calls of tools in namespaces say of whom they call, by the full names."""
    return {
        full_name(namespace, tool.name): {"name": tool.name, "namespace": namespace}
        for namespace, tool in _each(tools)
        if namespace is not None
    }


def that_take_text(tools: Sequence[AnyTool]) -> frozenset[str]:
    """Custom ones, by the full names."""
    each = _each(tools)
    return frozenset(full_name(space, one.name) for space, one in each if one.type == "custom")


def _each(tools: Sequence[AnyTool]) -> Iterator[tuple[str | None, OneTool]]:
    """All that can be called, and the namespaces that they are in."""
    for tool in tools:
        if isinstance(tool, Namespace):
            yield from ((tool.name, one) for one in tool.tools)
        else:
            yield None, tool


def that_clients_run(tools: Any) -> Any:
    """Without what only OpenAI's own servers can run, or only their models know how to call."""
    told = _of_types(tools, (*CALLED, "namespace"))
    for place, tool in enumerate(told if isinstance(told, list) else ()):
        if isinstance(tool, dict) and tool.get("type") == "namespace":
            told[place] = {**tool, "tools": _of_types(tool.get("tools"), CALLED)}
    return told


def _of_types(tools: Any, types: Sequence[str | None]) -> Any:
    if not isinstance(tools, list):
        return tools
    return [tool for tool in tools if not isinstance(tool, dict) or tool.get("type") in types]
