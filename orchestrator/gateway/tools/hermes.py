"""Calls of Hermes, Qwen 2.5 and 3, and many others."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.gateway.tools.call_object import CallObject
from orchestrator.gateway.tools.grammar import call_object, either
from orchestrator.gateway.tools.notation import Functions, Mark, Notation
from orchestrator.gateway.tools.schemas import Function


class Hermes(Notation):
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once for each call."""

    name = "hermes"
    begin = "<tool_call>"
    end = "</tool_call>"

    def body(self, functions: Functions | None, text: str) -> CallObject:
        """A call of any name, since marks tell that it is a call."""
        return CallObject()

    def lark(self, functions: Sequence[Function], mark: Mark, *, several: bool) -> str:
        """Each call has marks of its own around it."""
        calls = either([call_object(function, "arguments") for function in functions])
        start = 'marked ("\\n" marked)*' if several else "marked"
        marked = f'{mark(self.begin)} "\\n" call "\\n" {mark(self.end)}'
        return f"start: {start}\nmarked: {marked}\ncall: {calls}\n"


HERMES = Hermes()
