"""OpenAI's fields for tools and their calls."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from orchestrator.gateway.body import Body, ListOf

# Agents offer the tools of all MCP servers that they know, which may be some hundreds.
MAX_TOOLS = 1024
MAX_NAME_LETTERS = 128

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

FunctionName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LETTERS)]


class Function(Body):
    """A function that may be called."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        None, description="JSON Schema of an object, which is empty where nothing is said"
    )
    strict: bool | None = Field(
        None, description="of no effect: where a call is required, the schema always holds"
    )

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        """JSON Schema of its arguments."""
        schema = NO_PARAMETERS if self.parameters is None else self.parameters
        return {"type": "object", **schema}


class Tool(Body):
    """One entry of `tools`."""

    type: Literal["function"]
    function: Function
    strict: bool | None = Field(None, description="of no effect")
    cache_control: Any = Field(None, description="of no effect")


class ChosenFunction(Body):
    """The function that must be called."""

    name: FunctionName


class ChosenTool(Body):
    """`tool_choice` if it names a function."""

    type: Literal["function"]
    function: ChosenFunction


class Allowed(Body):
    """The tools that may be called, and whether one of them must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[ListOf[ChosenTool], Field(min_length=1)]


class AllowedTools(Body):
    """`tool_choice` if it names the tools that may be called: the model is shown no others."""

    type: Literal["allowed_tools"]
    allowed_tools: Allowed


def by_form() -> Discriminator:
    """Discriminates the forms of `tool_choice`: a word, one tool, or allowed tools."""

    def form(value: Any) -> str:
        if isinstance(value, str):
            return "item:word"
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return "item:several" if kind == "allowed_tools" else "item:one"

    return Discriminator(form)


Word = Literal["none", "auto", "required"]
PlainChoice = Word | ChosenTool
ToolChoice = Annotated[
    Annotated[Word, Tag("item:word")]
    | Annotated[ChosenTool, Tag("item:one")]
    | Annotated[AllowedTools, Tag("item:several")],
    by_form(),
]


class CalledFunction(Body):
    """The function and arguments of a call of an earlier answer."""

    name: FunctionName
    arguments: str = Field(description="a JSON object, as text")
    parsed_arguments: Any = Field(None, description="of no effect: OpenAI's client makes it")
    provider_specific_fields: Any = Field(None, description="of no effect: LiteLLM makes it")


class Call(Body):
    """A call of an earlier answer, which the client sends back."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = Field(None, description="of no effect")
    provider_specific_fields: Any = Field(None, description="of no effect: LiteLLM makes it")
