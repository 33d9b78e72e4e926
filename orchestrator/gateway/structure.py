"""Translates the fields for structured output, OpenAI's and vLLM's, to a grammar."""

from __future__ import annotations

import json
from typing import Any

from draftloop.grammar import ANY_OBJECT, Grammar
from orchestrator.gateway.forms import ResponseFormat, StructuredOutputs
from orchestrator.gateway.generating import Generating


def grammar_of(said: Generating) -> Grammar | None:
    """The grammar of the answer's content; None if any text will do."""
    if said.structured_outputs is not None:
        return _structured(said.structured_outputs)
    if said.response_format is None or said.response_format.type == "text":
        return None
    return _formatted(said.response_format)


def _formatted(said: ResponseFormat) -> Grammar:
    schema = said.schema_of_answer
    return Grammar("json_schema", ANY_OBJECT if schema is None else _as_text(schema))


def _structured(said: StructuredOutputs) -> Grammar:
    if said.json_ is not None:
        return Grammar("json_schema", _as_text(said.json_))
    if said.regex is not None:
        return Grammar("regex", said.regex)
    if said.choice is not None:
        return Grammar("choice", json.dumps(said.choice))
    if said.grammar is not None:
        return Grammar("grammar", said.grammar)
    return Grammar("json_schema", ANY_OBJECT)


def _as_text(schema: str | bool | dict[str, Any]) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)
