"""The grammar of an answer that consists of tool calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.grammars.text import JSON_DEFAULTS, enforced_schema
from orchestrator.gateway.tools.notation import Notation
from orchestrator.gateway.tools.schemas import Function
from orchestrator.tokenizer import Tokenizer


def calls_grammar(
    notation: Notation, functions: Sequence[Function], tokenizer: Tokenizer, *, several: bool
) -> Grammar:
    """The grammar of one call of these functions, or `several`, with arguments as in their schemas.

    Raises InvalidInput if the notation cannot express what a schema demands.
    """

    def mark(text: str) -> str:
        """A mark that is a single token is written by its id, since models write that token."""
        token = tokenizer.added_token(text)
        return literal(text) if token is None else f"<[{token}]>"

    return Grammar("grammar", notation.lark(functions, mark, several=several))


def literal(text: str) -> str:
    """Lark for exactly that text."""
    return json.dumps(text, ensure_ascii=False)


def json_value(schema: dict[str, Any]) -> str:
    """Lark for JSON of that schema."""
    try:
        value = {"x-guidance": JSON_DEFAULTS, **enforced_schema(schema)}
        return f"%json {json.dumps(value)}"
    except RecursionError:
        raise InvalidInput("tools", "must not be nested so deep", "objects in objects") from None


def call_object(function: Function, arguments: str) -> str:
    """Lark for a call as an object with a name and its arguments under the key `arguments`."""
    name = json.dumps(function.name, ensure_ascii=False)
    head = f'{{"name": {name}, "{arguments}": '
    return f"{json.dumps(head)} {json_value(function.schema_of_arguments)} {json.dumps('}')}"


def either(choices: Sequence[str]) -> str:
    """Lark for one of these."""
    return " | ".join(choices)
