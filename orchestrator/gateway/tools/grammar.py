"""The form of an answer that has to call tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.grammars.text import JSON_DEFAULTS, followed
from orchestrator.gateway.tools.notation import Notation
from orchestrator.gateway.tools.schemas import Function
from orchestrator.tokenizer import Tokenizer


def calls_grammar(
    notation: Notation, functions: Sequence[Function], tokenizer: Tokenizer, *, several: bool
) -> Grammar:
    """One call, or `several`, of these functions, with arguments as their schemas say.

    Raises InvalidInput where the notation cannot write what a schema wants.
    """

    def mark(text: str) -> str:
        """A token of its own, which models write it by, is told by its id."""
        token = tokenizer.added_token(text)
        return literal(text) if token is None else f"<[{token}]>"

    return Grammar("grammar", notation.lark(functions, mark, several=several))


def literal(text: str) -> str:
    """That text, in Lark's words."""
    return json.dumps(text, ensure_ascii=False)


def json_value(schema: dict[str, Any]) -> str:
    """JSON of that schema, in Lark's words."""
    try:
        said = {"x-guidance": JSON_DEFAULTS, **followed(schema)}
        return f"%json {json.dumps(said)}"
    except RecursionError:
        raise InvalidInput("tools", "must not be nested so deep", "objects in objects") from None


def call_object(function: Function, arguments: str) -> str:
    """A call as an object of a name and `arguments`, in Lark's words."""
    name = json.dumps(function.name, ensure_ascii=False)
    head = f'{{"name": {name}, "{arguments}": '
    return f"{json.dumps(head)} {json_value(function.schema_of_arguments)} {json.dumps('}')}"


def either(choices: Sequence[str]) -> str:
    """One of these, in Lark's words."""
    return " | ".join(choices)
