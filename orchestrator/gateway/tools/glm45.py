"""Calls of GLM: a name, then two pairs of tags for each argument; texts have no quotes."""

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

    GLM 4.5 and 4.6 write line ends in between, 4.7 and later do not.
    """

    name = "glm45"
    begin = CALL
    end = CALL_END
    inside = (KEY, KEY_END, VALUE, VALUE_END)

    def opens_call(self, text: str, after: str) -> bool | None:
        """A call begins right after the mark, with the name."""
        return after == CALL and NAME.match(text) is not None

    def body(self, functions: Functions | None, text: str) -> TaggedCall:
        """A call of any name. The schemas of its arguments, where known, tell which are text."""
        return TaggedCall(TAGS, functions)

    def lark(self, functions: Sequence[Function], mark: Mark, *, several: bool) -> str:
        """Arguments come in the schema's order. Raises InvalidInput for what tags cannot hold."""
        words = Words(
            head=lambda name: f"{literal(_require_valid_name(NAME, name))} LINE?",
            key=lambda name: (
                f"{mark(KEY)} {literal(_require_valid_name(KEY_NAME, name))} {mark(KEY_END)} LINE? "
                f"{mark(VALUE)}"
            ),
            value_end=VALUE_END, mark=mark, forbidden=(VALUE_END,), after_argument="LINE?",
        )  # fmt: skip
        rules = call_rules(functions, words)
        start = "marked (LINE? marked)*" if several else "marked"
        marked = f"{mark(CALL)} call {mark(CALL_END)}"
        return "\n".join([f"start: {start}", f"marked: {marked}", 'LINE: "\\n"', *rules, ""])


def _require_valid_name(pattern: re.Pattern[str], name: str) -> str:
    if not pattern.fullmatch(name):
        rule = f"must have names that match {pattern.pattern}, as this model writes calls"
        raise InvalidInput("tools", rule, name)
    return name


GLM45 = Glm45()
