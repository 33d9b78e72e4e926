"""Calls of MiniMax M2: invocations in a section, a tag per argument; texts have no quotes."""

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

CALLS, CALLS_END = "<minimax:tool_call>", "</minimax:tool_call>"
INVOKE, INVOKE_END = "<invoke name=", "</invoke>"
PARAMETER, PARAMETER_END = "<parameter name=", "</parameter>"
VALUE_ENDS = (PARAMETER_END, PARAMETER, INVOKE_END)  # as with Qwen3-Coder
QUOTE, NAME = "[\"']?", r"[^>\n]*"


def _head(tag: str) -> Head:
    """A tag with a name in quotes, which models sometimes forget."""
    whole = re.compile(f"{tag}{QUOTE}({NAME}?){QUOTE}>")
    return Head(tag, whole, re.compile(f"{tag}{NAME}"))


TAGS = Tags(
    call=_head(INVOKE),
    key=_head(PARAMETER),
    value=ValueTags(PARAMETER_END, VALUE_ENDS),
    end=INVOKE_END,
    ends=(INVOKE_END, CALLS_END),
)


class MiniMaxM2(Notation):
    """`<invoke name="name"><parameter name="key">value</parameter></invoke>`, on several lines."""

    name = "minimax_m2"
    begin = CALLS
    end = CALLS_END
    opening = INVOKE

    def body(self, functions: Functions | None, text: str) -> TaggedCall:
        """A call of any name. The schemas of its arguments, where known, tell which are text."""
        return TaggedCall(TAGS, functions)

    def lark(self, functions: Sequence[Function], mark: Mark, *, several: bool) -> str:
        """Arguments come in the schema's order. Raises InvalidInput for what tags cannot hold."""
        more = "+" if several else ""
        start = f'start: {mark(CALLS)} "\\n" (call "\\n"){more} {mark(CALLS_END)}'
        return "\n".join([start, *call_rules(functions, WORDS), ""])


def _invoke_tag(name: str) -> str:
    return literal(f'{INVOKE}"{_require_valid_name(name)}">\n')


def _key(name: str) -> str:
    return literal(f'{PARAMETER}"{_require_valid_name(name)}">')


def _require_valid_name(name: str) -> str:
    if not re.fullmatch(NAME, name) or name != name.strip(" \t\"'"):
        rule = "must have names without line ends and >, as this model writes calls"
        raise InvalidInput("tools", rule, name)
    return name


WORDS = Words(_invoke_tag, _key, f"{PARAMETER_END}\n", literal, VALUE_ENDS, end=literal(INVOKE_END))
MINIMAX_M2 = MiniMaxM2()
