"""Calls of Kimi K2. The model gives them ids, which its template wants back."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.gateway.tools.grammar import either, json_value, literal
from orchestrator.gateway.tools.notation import Mark
from orchestrator.gateway.tools.schemas import Function
from orchestrator.gateway.tools.sectioned import WORD, Sectioned, required_name

CALLS, CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"


class KimiK2(Sectioned):
    """`functions.name:0<|tool_call_argument_begin|>{…}` between marks, with the call's number.

    Calls are numbered through the whole chat, as its earlier calls show the model.
    """

    name = "kimi_k2"
    section = CALLS
    begin = CALL
    end = CALLS_END
    between = (CALLS, CALL, CALL_END)
    inside = (CALLS, ARGUMENTS, CALL_END)
    call_end = CALL_END
    head = re.compile(
        rf"(?P<id>(?:functions\.)?(?P<name>{WORD}?)(?::\d+)?)\s*{re.escape(ARGUMENTS)}\s*(?=\{{)"
    )

    def lark(self, functions: Sequence[Function], mark: Mark, *, several: bool) -> str:
        """Allows any number: the model knows which ones it has used."""
        calls = either(
            [
                f"{literal(f'functions.{required_name(function)}:')} NUMBER {mark(ARGUMENTS)} "
                f"{json_value(function.schema_of_arguments)}"
                for function in functions
            ]
        )
        return (
            f"start: {mark(CALLS)} marked{'+' if several else ''} {mark(CALLS_END)}\n"
            f"marked: {mark(CALL)} call {mark(CALL_END)}\n"
            f"call: {calls}\nNUMBER: /0|[1-9][0-9]{{0,3}}/\n"
        )


KIMI_K2 = KimiK2()
