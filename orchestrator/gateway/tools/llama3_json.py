"""Calls of Llama 3 in JSON."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.gateway.tools.call_object import CallObject
from orchestrator.gateway.tools.grammar import call_object, either
from orchestrator.gateway.tools.notation import Functions, Mark, Notation
from orchestrator.gateway.tools.schemas import Function


class Llama3Json(Notation):
    """`{"name": …, "parameters": {…}}` as the whole answer, several separated by `;`."""

    name = "llama3_json"
    begin = "<|python_tag|>"
    between = (";",)
    opens_answer = True

    def body(self, functions: Functions | None, text: str) -> CallObject:
        """Only an object with a known function's name is a call, since nothing marks calls."""
        return CallObject(functions)

    def lark(self, functions: Sequence[Function], mark: Mark, *, several: bool) -> str:
        """Calls without the mark before them, which most of these models leave out."""
        calls = either([call_object(function, "parameters") for function in functions])
        start = 'call ("; " call)*' if several else "call"
        return f"start: {start}\ncall: {calls}\n"


LLAMA3_JSON = Llama3Json()
