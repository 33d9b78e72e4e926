"""Tools of a response (functions, tools that take text, namespaces), and their form in chats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Tag, field_validator

from orchestrator.gateway.body import Body, ListOf, by_type
from orchestrator.gateway.responses.custom_input import ARGUMENTS
from orchestrator.gateway.tools.schemas import Function, FunctionName

CLIENT_TOOL_TYPES = (None, "function", "custom")


class HintFields(Body):
    """Fields without effect that both kinds of tools may have."""

    defer_loading: bool | None = Field(None, description="of no effect: all are told at once")
    allowed_callers: ListOf[str] | None = Field(
        None, description="of no effect: the model is the only one that calls"
    )


class ResponseTool(HintFields, Function):
    """A function that may be called, with all its fields in one object."""

    type: Literal["function"]
    output_schema: dict[str, Any] | None = Field(None, description="of no effect")

    @property
    def chat_form(self) -> dict[str, Any]:
        """The same with the function's fields in an object of its own."""
        function = self.model_dump(include=set(Function.model_fields), exclude_none=True)
        return {"type": self.type, "function": function}


class InputFormat(Body):
    """The form of the text that a custom tool takes."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = Field(None, description="of the definition")
    definition: str | None = Field(None, description="the model is told of it, and not held to it")


class CustomTool(HintFields):
    """A tool that takes a text; for the model, a function with one argument."""

    type: Literal["custom"]
    name: FunctionName
    description: str | None = None
    format: InputFormat | None = None

    @property
    def chat_form(self) -> dict[str, Any]:
        """The tool as a function, whose description says what its text must look like."""
        function = {
            "name": self.name,
            "description": self._chat_description,
            "parameters": ARGUMENTS,
        }
        return {"type": "function", "function": function}

    @property
    def _chat_description(self) -> str | None:
        if self.format is None or self.format.definition is None:
            return self.description
        regex = self.format.syntax == "regex"
        kind = "regular expression" if regex else "grammar in Lark's notation"
        requirement = f"`input` must fit this {kind}:\n{self.format.definition}"
        return f"{self.description}\n\n{requirement}" if self.description else requirement


OneTool = Annotated[
    Annotated[ResponseTool, Tag("item:function")] | Annotated[CustomTool, Tag("item:custom")],
    by_type("function"),
]


class Namespace(Body):
    """Tools that share a namespace; Codex sends the tools of each MCP server as one."""

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
    """`tool_choice` if it names a tool."""

    type: Literal["function", "custom"]
    name: FunctionName
    namespace: FunctionName | None = None

    @property
    def chat_form(self) -> dict[str, Any]:
        """The same with the full name in an object of its own."""
        return {"type": "function", "function": {"name": full_name(self.namespace, self.name)}}


class AllowedResponseTools(Body):
    """`tool_choice` if it names the tools that may be called: the model is shown no others."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[ListOf[ChosenResponseTool], Field(min_length=1)]

    @field_validator("tools", mode="before")
    @classmethod
    def _drop_server_tools(cls, tools: Any) -> Any:
        return _of_types(tools, CLIENT_TOOL_TYPES)

    @property
    def chat_form(self) -> dict[str, Any]:
        """The same with mode and tools in an object of its own."""
        tools = [tool.chat_form for tool in self.tools]
        return {"type": self.type, "allowed_tools": {"mode": self.mode, "tools": tools}}


def full_name(namespace: str | None, name: str) -> str:
    """The name by which the model knows the function."""
    return name if namespace is None else f"{namespace}__{name}"


def chat_tools(tools: Sequence[AnyTool]) -> list[dict[str, Any]]:
    """The tools as a chat's functions, under full names since chats have no namespaces."""
    functions = []
    for namespace, tool in _each_tool(tools):
        function = tool.chat_form
        function["function"]["name"] = full_name(namespace, tool.name)
        functions.append(function)
    return functions


def namespaced_names(tools: Sequence[AnyTool]) -> dict[str, dict[str, str]]:
    """Name and namespace of each tool in a namespace, by its full name."""
    return {
        full_name(namespace, tool.name): {"name": tool.name, "namespace": namespace}
        for namespace, tool in _each_tool(tools)
        if namespace is not None
    }


def custom_tool_names(tools: Sequence[AnyTool]) -> frozenset[str]:
    """Full names of the custom tools, which take text."""
    namespaced = _each_tool(tools)
    return frozenset(
        full_name(space, one.name) for space, one in namespaced if one.type == "custom"
    )


def _each_tool(tools: Sequence[AnyTool]) -> Iterator[tuple[str | None, OneTool]]:
    """Each tool with the namespace that it is in, or None."""
    for tool in tools:
        if isinstance(tool, Namespace):
            yield from ((tool.name, one) for one in tool.tools)
        else:
            yield None, tool


def drop_server_tools(tools: Any) -> Any:
    """The tools without those that only OpenAI's servers can run, or only its models can call."""
    kept = _of_types(tools, (*CLIENT_TOOL_TYPES, "namespace"))
    for index, tool in enumerate(kept if isinstance(kept, list) else ()):
        if isinstance(tool, dict) and tool.get("type") == "namespace":
            kept[index] = {**tool, "tools": _of_types(tool.get("tools"), CLIENT_TOOL_TYPES)}
    return kept


def _of_types(tools: Any, types: Sequence[str | None]) -> Any:
    if not isinstance(tools, list):
        return tools
    return [tool for tool in tools if not isinstance(tool, dict) or tool.get("type") in types]
