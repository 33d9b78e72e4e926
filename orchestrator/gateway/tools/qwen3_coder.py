"""Calls of Qwen3-Coder: a function and its arguments between tags, texts without quotes."""

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

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
CALL_END = "</tool_call>"
VALUE_ENDS = (PARAMETER_END, PARAMETER, FUNCTION_END)  # models forget the first one now and then
NAME = r"[^>\n]*"
TAGS = Tags(
    call=Head(FUNCTION, re.compile(f"{FUNCTION}({NAME})>"), re.compile(FUNCTION + NAME)),
    key=Head(PARAMETER, re.compile(f"{PARAMETER}({NAME})>"), re.compile(PARAMETER + NAME)),
    value=ValueTags(PARAMETER_END, VALUE_ENDS, edge="\n"),
    end=FUNCTION_END,
    ends=(FUNCTION_END, CALL_END),
)
LINE_BEHIND = f"\n{PARAMETER_END}\n"  # a value


class Qwen3Coder(Notation):
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

    These models leave out `<tool_call>` now and then.
    """

    name = "qwen3_coder"
    begin = "<tool_call>"
    end = CALL_END
    opening = FUNCTION

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.begin, self.opening)

    def body(self, functions: Functions | None, text: str) -> TaggedCall:
        """Whatever its name; what is known of its arguments says which are text."""
        return TaggedCall(TAGS, functions)

    def lark(self, functions: Sequence[Function], mark: Mark, *, several: bool) -> str:
        """Arguments in the order of the schema. Raises InvalidInput where tags cannot hold it."""
        rules = [rule for n, function in enumerate(functions) for rule in _call(n, function)]
        marked = f'{mark(self.begin)} "\\n" call "\\n" {mark(self.end)}'
        calls = either([f"call_{number}" for number in range(len(functions))])
        start = 'marked ("\\n" marked)*' if several else "marked"
        return "\n".join([f"start: {start}", f"marked: {marked}", f"call: {calls}", *rules, ""])


def _call(number: int, function: Function) -> list[str]:
    _require_name(function.name)
    fields = fields_of(function)
    names = [f"field_{number}_{place}" for place in range(len(fields))]
    written = " ".join(
        name if field.required else f"{name}?" for name, field in zip(names, fields, strict=True)
    )
    head = literal(f"{FUNCTION}{function.name}>\n")
    call = f"call_{number}: {head} {written} {literal(FUNCTION_END)}"
    return [call, *(rule for pair in zip(names, fields, strict=True) for rule in _field(*pair))]


def _field(name: str, field: Field) -> list[str]:
    _require_name(field.name)
    begin = f"{name}: {literal(f'{PARAMETER}{field.name}>' + chr(10))}"
    if not is_text(field.schema):
        return [f"{begin} {json_value(field.schema)} {literal(LINE_BEHIND)}"]
    value, rules = text_rules(name, field.schema, LINE_BEHIND, literal, without=VALUE_ENDS)
    return [f"{begin} ({value})", *rules]


def _require_name(name: str) -> None:
    if not re.fullmatch(NAME, name) or name != name.strip():
        rule = "must have names without line ends and >, as this model writes calls"
        raise InvalidInput("tools", rule, name)


QWEN3_CODER = Qwen3Coder()
