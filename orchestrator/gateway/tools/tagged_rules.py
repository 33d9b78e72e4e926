"""Lark rules for calls between tags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from orchestrator.gateway.tools.bare_text import text_rules
from orchestrator.gateway.tools.fields import Field, fields_of, is_text
from orchestrator.gateway.tools.grammar import either, json_value
from orchestrator.gateway.tools.notation import Mark
from orchestrator.gateway.tools.schemas import Function


class Words(NamedTuple):
    """How a family of models writes tags, in Lark.

    `head` and `key` give what comes before a call of a name and before an argument of a key; they
    raise InvalidInput for names that the tags cannot hold. `value_end` ends an argument and is
    written by `mark`. Texts contain none of the marks `forbidden`. `after_argument` follows each
    argument, and `end` follows the last.
    """

    head: Callable[[str], str]
    key: Callable[[str], str]
    value_end: str
    mark: Mark
    forbidden: tuple[str, ...]
    after_argument: str = ""
    end: str = ""


def call_rules(functions: Sequence[Function], words: Words) -> list[str]:
    """Rules; `call` is one call of any of the functions, with arguments in the schema's order.

    Raises InvalidInput for what tags cannot hold.
    """
    calls = either([f"call_{index}" for index in range(len(functions))])
    rules = [f"call: {calls}"]
    for index, function in enumerate(functions):
        rules += _call(index, function, words)
    return rules


def _call(number: int, function: Function, words: Words) -> list[str]:
    head = words.head(function.name)
    fields = [(f"field_{number}_{index}", one) for index, one in enumerate(fields_of(function))]
    written = " ".join(name if field.required else f"{name}?" for name, field in fields)
    call = f"call_{number}: {head} {written} {words.end}"
    return [call, *(rule for name, field in fields for rule in _field(name, field, words))]


def _field(name: str, field: Field, words: Words) -> list[str]:
    begin = f"{name}: {words.key(field.name)}"
    if not is_text(field.schema):
        end = words.mark(words.value_end)
        return [f"{begin} {json_value(field.schema)} {end} {words.after_argument}"]
    value, rules = text_rules(
        name, field.schema, words.value_end, words.mark, forbidden=words.forbidden
    )
    return [f"{begin} ({value}) {words.after_argument}", *rules]
