"""Calls of Qwen3-Coder: a function and its arguments between tags; texts have no quotes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.grammar import literal
from orchestrator.gateway.tools.notation import Functions, Mark, Notation
from orchestrator.gateway.tools.schemas import Function
from orchestrator.gateway.tools.tagged_call import Head, TaggedCall, Tags
from orchestrator.gateway.tools.tagged_rules import Words, call_rules
from orchestrator.gateway.tools.tagged_value import ValueTags

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
CALL_END = "</tool_call>"
VALUE_ENDS = (PARAMETER_END, PARAMETER, FUNCTION_END)  # models sometimes forget the first one
NAME = r"[^>\n]*"
TAGS = Tags(
    call=Head(FUNCTION, re.compile(f"{FUNCTION}({NAME})>"), re.compile(FUNCTION + NAME)),
    key=Head(PARAMETER, re.compile(f"{PARAMETER}({NAME})>"), re.compile(PARAMETER + NAME)),
    value=ValueTags(PARAMETER_END, VALUE_ENDS, edge="\n"),
    end=FUNCTION_END,
    ends=(FUNCTION_END, CALL_END),
)
VALUE_END_LINE = f"\n{PARAMETER_END}\n"  # after a value


class Qwen3Coder(Notation):
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

    These models sometimes leave out `<tool_call>`.
    """

    name = "qwen3_coder"
    begin = "<tool_call>"
    end = CALL_END
    opening = FUNCTION

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.begin, self.opening)

    def body(self, functions: Functions | None, text: str) -> TaggedCall:
        """A call of any name. The schemas of its arguments, where known, tell which are text."""
        return TaggedCall(TAGS, functions)

    def lark(self, functions: Sequence[Function], mark: Mark, *, several: bool) -> str:
        """Arguments come in the schema's order. Raises InvalidInput for what tags cannot hold."""
        marked = f'{mark(self.begin)} "\\n" call "\\n" {mark(self.end)}'
        start = 'marked ("\\n" marked)*' if several else "marked"
        rules = call_rules(functions, WORDS)
        return "\n".join([f"start: {start}", f"marked: {marked}", *rules, ""])


def _head(name: str) -> str:
    return literal(f"{FUNCTION}{_require_valid_name(name)}>\n")


def _key(name: str) -> str:
    return literal(f"{PARAMETER}{_require_valid_name(name)}>\n")


def _require_valid_name(name: str) -> str:
    if not re.fullmatch(NAME, name) or name != name.strip():
        rule = "must have names without line ends and >, as this model writes calls"
        raise InvalidInput("tools", rule, name)
    return name


WORDS = Words(_head, _key, VALUE_END_LINE, literal, VALUE_ENDS, end=literal(FUNCTION_END))
QWEN3_CODER = Qwen3Coder()
