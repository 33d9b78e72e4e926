"""What clients say of tools: OpenAI's fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from orchestrator.gateway.body import Body, ListOf

# Agents offer those of all MCP servers that they know, which may be some hundreds.
MOST_TOOLS = 1024
MOST_NAME_LETTERS = 128

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

FunctionName = Annotated[str, Field(min_length=1, max_length=MOST_NAME_LETTERS)]


class Function(Body):
    """What may be called."""

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
        """JSON Schema of what it takes."""
        said = NO_PARAMETERS if self.parameters is None else self.parameters
        return {"type": "object", **said}


class Tool(Body):
    """One entry of `tools`."""

    type: Literal["function"]
    function: Function
    strict: bool | None = Field(None, description="of no effect")
    cache_control: Any = Field(None, description="of no effect")


class ChosenFunction(Body):
    """The one that is to be called."""

    name: FunctionName


class ChosenTool(Body):
    """`tool_choice`, where it names a function."""

    type: Literal["function"]
    function: ChosenFunction


class Allowed(Body):
    """Those that may be called, and whether one of them has to be."""

    mode: Literal["auto", "required"]
    tools: Annotated[ListOf[ChosenTool], Field(min_length=1)]


class AllowedTools(Body):
    """`tool_choice`, where it names those that may be called: the model is shown no others."""

    type: Literal["allowed_tools"]
    allowed_tools: Allowed


def by_form() -> Discriminator:
    """Tells choices of tools apart: a word, one tool, or several of them."""

    def form(said: Any) -> str:
        if isinstance(said, str):
            return "item:word"
        kind = said.get("type") if isinstance(said, dict) else getattr(said, "type", None)
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
    """Of an earlier answer."""

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
