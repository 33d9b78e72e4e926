"""What form an answer must have: OpenAI's words for it, and vLLM's."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from draftloop.errors import InvalidInput
from orchestrator.gateway.body import Body, ListOf


class JsonSchema(Body):
    """OpenAI's `response_format.json_schema`."""

    name: str | None = Field(None, description="of no effect")
    description: str | None = Field(None, description="of no effect")
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = Field(None, description="of no effect: the schema always holds")


class ResponseFormat(Body):
    """OpenAI's, for an answer that is JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            rule = "must be given with type json_schema, and with no other"
            raise InvalidInput("response_format.json_schema", rule, f"type {self.type}")
        return self


class StructuredOutputs(Body):
    """vLLM's: one of these."""

    json_: str | dict[str, Any] | bool | None = Field(
        None, alias="json", description="JSON Schema, as an object or as text"
    )
    json_object: Literal[True] | None = Field(None, description="any JSON object")
    regex: str | None = Field(None, description="for the whole answer; no look-around")
    choice: Annotated[ListOf[str], Field(min_length=1)] | None = None
    grammar: str | None = Field(None, description="Lark's notation, or llama.cpp's (GBNF)")

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if len(given := self.model_dump(by_alias=True, exclude_none=True)) != 1:
            rule = "must have one of json, json_object, regex, choice, grammar"
            raise InvalidInput("structured_outputs", rule, ", ".join(given) or "none")
        return self
