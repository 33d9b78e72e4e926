"""Translates the fields for structured output, OpenAI's and vLLM's, to a grammar."""

from __future__ import annotations

import json
from typing import Any

from draftloop.errors import InvalidInput
from draftloop.grammar import ANY_OBJECT, Grammar
from orchestrator.gateway.form_field import with_form_field
from orchestrator.gateway.forms import ResponseFormat, StructuredOutputs
from orchestrator.gateway.generating import Generating


def grammar_of(body: Generating) -> Grammar | None:
    """The grammar of the answer's content; None if any text will do.

    Raises InvalidInput for one that is too long, before it is combined with others.
    """
    if body.structured_outputs is not None:
        grammar = _structured_outputs_grammar(body.structured_outputs)
    elif body.response_format is None or body.response_format.type == "text":
        return None
    else:
        grammar = _response_format_grammar(body.response_format)
    try:
        grammar.validate()
    except InvalidInput as error:
        raise with_form_field(error, body.form_field) from None
    return grammar


def _response_format_grammar(response_format: ResponseFormat) -> Grammar:
    schema = response_format.schema_of_answer
    return Grammar("json_schema", ANY_OBJECT if schema is None else _as_text(schema))


def _structured_outputs_grammar(outputs: StructuredOutputs) -> Grammar:
    if outputs.json_ is not None:
        return Grammar("json_schema", _as_text(outputs.json_))
    if outputs.regex is not None:
        return Grammar("regex", outputs.regex)
    if outputs.choice is not None:
        return Grammar("choice", json.dumps(outputs.choice))
    if outputs.grammar is not None:
        return Grammar("grammar", outputs.grammar)
    return Grammar("json_schema", ANY_OBJECT)


def _as_text(schema: str | bool | dict[str, Any]) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)
