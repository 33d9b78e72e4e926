"""Calls of GLM: a name, and a pair of tags for each argument, texts without quotes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.bare_text import text_rules
from orchestrator.gateway.tools.fields import Field, fields_of, is_text
from orchestrator.gateway.tools.grammar import either, json_value, literal
from orchestrator.gateway.tools.notation import Functions, Mark, Notation
from orchestrator.gateway.tools.schemas import Function
from orchestrator.gateway.tools.tagged_call import Head, TaggedCall, Tags
from orchestrator.gateway.tools.tagged_value import ValueTags

CALL, CALL_END = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"
PART_OF_TAG = "(?:<[a-z_/]*)?"
NAME, KEY_NAME = re.compile(r"[^\s<{]+"), re.compile(r"[^\s<](?:[^<]*[^\s<])?")
TAGS = Tags(
    call=Head(
        "",
        re.compile(rf"({NAME.pattern})\s*(?={KEY}|{CALL_END})"),
        re.compile(rf"{NAME.pattern}\s*{PART_OF_TAG}"),
    ),
    key=Head(
        KEY,
        re.compile(rf"{KEY}([^<]*){KEY_END}\s*{VALUE}"),
        re.compile(rf"{KEY}[^<]*(?:{KEY_END}\s*)?{PART_OF_TAG}"),
    ),
    value=ValueTags(VALUE_END, (VALUE_END,)),
    end="",
    ends=(CALL_END,),
)


class Glm45(Notation):
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`.

    4.5 and 4.6 end lines in between, 4.7 and later do not.
    """

    name = "glm45"
    begin = CALL
    end = CALL_END
    inside = (KEY, KEY_END, VALUE, VALUE_END)

    def opens_call(self, text: str, after: str) -> bool | None:
        """Right behind the mark, with the name."""
        return after == CALL and NAME.match(text) is not None

    def body(self, functions: Functions | None, text: str) -> TaggedCall:
        """Whatever its name; what is known of its arguments says which are text."""
        return TaggedCall(TAGS, functions)

    def lark(self, functions: Sequence[Function], mark: Mark, *, several: bool) -> str:
        """Arguments in the order of the schema. Raises InvalidInput where tags cannot hold it."""
        rules = [rule for n, function in enumerate(functions) for rule in _call(n, function, mark)]
        calls = either([f"call_{number}" for number in range(len(functions))])
        start = "marked (LINE? marked)*" if several else "marked"
        marked = f"{mark(CALL)} ({calls}) {mark(CALL_END)}"
        return "\n".join([f"start: {start}", f"marked: {marked}", 'LINE: "\\n"', *rules, ""])


def _call(number: int, function: Function, mark: Mark) -> list[str]:
    _require(NAME, function.name)
    fields = fields_of(function)
    names = [f"field_{number}_{place}" for place in range(len(fields))]
    written = " ".join(
        name if field.required else f"{name}?" for name, field in zip(names, fields, strict=True)
    )
    call = f"call_{number}: {literal(function.name)} LINE? {written}"
    pairs = zip(names, fields, strict=True)
    return [call, *(rule for name, field in pairs for rule in _field(name, field, mark))]


def _field(name: str, field: Field, mark: Mark) -> list[str]:
    _require(KEY_NAME, field.name)
    head = f"{mark(KEY)} {literal(field.name)} {mark(KEY_END)} LINE? {mark(VALUE)}"
    if not is_text(field.schema):
        return [f"{name}: {head} {json_value(field.schema)} {mark(VALUE_END)} LINE?"]
    value, rules = text_rules(name, field.schema, VALUE_END, mark, without=(VALUE_END,))
    return [f"{name}: {head} ({value}) LINE?", *rules]


def _require(pattern: re.Pattern[str], name: str) -> None:
    if not pattern.fullmatch(name):
        rule = f"must have names that match {pattern.pattern}, as this model writes calls"
        raise InvalidInput("tools", rule, name)


GLM45 = Glm45()
