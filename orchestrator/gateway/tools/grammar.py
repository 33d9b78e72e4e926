"""The form of an answer that has to call tools."""

from __future__ import annotations

import json
from collections.abc import Sequence

from draftloop.grammar import Grammar
from draftloop.grammars.text import JSON_DEFAULTS
from orchestrator.gateway.tools.notation import Notation
from orchestrator.gateway.tools.schemas import Function
from orchestrator.tokenizer import Tokenizer


def calls_grammar(
    notation: Notation, functions: Sequence[Function], tokenizer: Tokenizer, *, several: bool
) -> Grammar:
    """One call, or `several`, of these functions, with arguments as their schemas say."""
    form = notation.lark if several else notation.lark_single
    marks = {"begin": _mark(notation.begin, tokenizer), "end": _mark(notation.end, tokenizer)}
    calls = " | ".join(_call(notation, function) for function in functions)
    return Grammar("grammar", f"start: {form.format(**marks)}\ncall: {calls}\n")


def _mark(text: str, tokenizer: Tokenizer) -> str:
    """A token of its own, which models write it by, is told by its id."""
    token = tokenizer.added_token(text)
    return json.dumps(text) if token is None else f"<[{token}]>"


def _call(notation: Notation, function: Function) -> str:
    name = json.dumps(function.name, ensure_ascii=False)
    head = f'{{"name": {name}, "{notation.arguments}": '
    said = {"x-guidance": JSON_DEFAULTS, **function.schema_of_arguments}
    return f"{json.dumps(head)} %json {json.dumps(said)} {json.dumps('}')}"
