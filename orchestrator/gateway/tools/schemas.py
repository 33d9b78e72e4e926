"""OpenAI's fields for tools and their calls."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from orchestrator.gateway.body import Body

# Agents offer the tools of all MCP servers that they know, which may be some hundreds.
MOST_TOOLS = 1024
MOST_NAME_LETTERS = 128

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

FunctionName = Annotated[str, Field(min_length=1, max_length=MOST_NAME_LETTERS)]


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
        said = NO_PARAMETERS if self.parameters is None else self.parameters
        return {"type": "object", **said}


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


ToolChoice = Literal["none", "auto", "required"] | ChosenTool


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
