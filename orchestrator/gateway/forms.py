"""Request fields for structured output, which set the answer's form: OpenAI's and vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
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
    """OpenAI's `response_format`. llama.cpp's clients put the schema beside `type`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | bool | None = Field(
        None, alias="schema", description="llama.cpp's place for the schema"
    )

    @property
    def schema_of_answer(self) -> dict[str, Any] | bool | None:
        """The JSON Schema of the answer; None if any JSON object or any text will do."""
        return self.schema_ if self.json_schema is None else self.json_schema.schema_

    @model_validator(mode="after")
    def _check_schema_place(self) -> Self:
        if self.schema_ is not None and (self.json_schema is not None or self.type == "text"):
            rule = "must not be given with type text, nor beside json_schema"
            raise InvalidInput("response_format.schema", rule, f"type {self.type}")
        if self.schema_ is None and (self.type == "json_schema") != (self.json_schema is not None):
            rule = "must be given with type json_schema, and with no other"
            raise InvalidInput("response_format.json_schema", rule, f"type {self.type}")
        return self


class StructuredOutputs(Body):
    """vLLM's `structured_outputs`: exactly one of these."""

    json_: str | dict[str, Any] | bool | None = Field(
        None, alias="json", description="JSON Schema, as an object or as text"
    )
    json_object: Literal[True] | None = Field(None, description="any JSON object")
    regex: str | None = Field(None, description="for the whole answer; no look-around")
    choice: Annotated[ListOf[str], Field(min_length=1)] | None = None
    grammar: str | None = Field(None, description="Lark's notation, or llama.cpp's (GBNF)")

    @model_validator(mode="after")
    def _check_exactly_one(self) -> Self:
        if len(given := self.model_dump(by_alias=True, exclude_none=True)) != 1:
            rule = "must have one of json, json_object, regex, choice, grammar"
            raise InvalidInput("structured_outputs", rule, ", ".join(given) or "none")
        return self


# vLLM's names before it had structured_outputs. guidance sends both, to suit any version.
NEWER_NAMES = {
    "guided_json": "json", "guided_regex": "regex", "guided_choice": "choice",
    "guided_grammar": "grammar",
}  # fmt: skip
OLDER_BACKEND = "guided_decoding_backend"  # the library that makes the masks: of no effect


def without_older_names(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with the older names replaced by `structured_outputs`.

    Raises InvalidInput if both are given and differ.
    """
    older_names = {NEWER_NAMES[name]: name for name in NEWER_NAMES if body.get(name) is not None}
    rest = {
        field: value
        for field, value in body.items()
        if field not in NEWER_NAMES and field != OLDER_BACKEND
    }
    if not older_names:
        return rest
    given = {new_name: body[name] for new_name, name in older_names.items()}
    newer_value = body.get("structured_outputs")
    if newer_value is not None and newer_value != given:
        rule = f"must say the same as {' and '.join(older_names.values())} if both are given"
        raise InvalidInput("structured_outputs", rule, newer_value)
    return {**rest, "structured_outputs": given}
