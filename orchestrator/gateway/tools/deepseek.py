"""Calls of DeepSeek: V3 and R1-0528 write a fenced object, V3.1 and later a name and an object."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.gateway.tools.grammar import either, json_value, literal
from orchestrator.gateway.tools.notation import Mark
from orchestrator.gateway.tools.schemas import Function
from orchestrator.gateway.tools.sectioned import WORD, Sectioned, required_name

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
KIND, FENCE = "function", "```"


class DeepSeek(Sectioned):
    """`function<｜tool▁sep｜>name` and fenced JSON, or `name<｜tool▁sep｜>{…}`."""

    name = "deepseek"
    section = CALLS
    begin = CALL
    end = CALLS_END
    between = (CALLS, CALL, FENCE, CALL_END)
    inside = (CALLS, SEPARATOR, CALL_END)
    call_end = CALL_END
    head = re.compile(
        rf"(?:\w*\s*{SEPARATOR}\s*)?(?P<name>{WORD})\s*(?:{SEPARATOR}|{FENCE}\w*)\s*(?=\{{)"
    )

    def lark(self, functions: Sequence[Function], mark: Mark, *, several: bool) -> str:
        """Allows both forms: the model's own probabilities favour the one it was trained on."""
        names = [required_name(function) for function in functions]
        separator = mark(SEPARATOR)
        fenced = [f'{literal(name)} "\\n{FENCE}json\\n" object_{n}' for n, name in enumerate(names)]
        plain = [f"{literal(name)} {separator} object_{n}" for n, name in enumerate(names)]
        more, again = (' ("\\n" fenced)*', "+") if several else ("", "")
        return (
            f"start: {mark(CALLS)} (fenced{more} | plain{again}) {mark(CALLS_END)}\n"
            f'fenced: {mark(CALL)} "{KIND}" {separator} ({either(fenced)}) '
            f'"\\n{FENCE}" {mark(CALL_END)}\n'
            f"plain: {mark(CALL)} ({either(plain)}) {mark(CALL_END)}\n"
        ) + "".join(
            f"object_{index}: {json_value(function.schema_of_arguments)}\n"
            for index, function in enumerate(functions)
        )


DEEPSEEK = DeepSeek()
