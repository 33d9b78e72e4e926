"""Calls of Mistral's models: older ones write a list of objects, newer ones names and arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.gateway.tools.call_object import CallObject
from orchestrator.gateway.tools.grammar import call_object, either, json_value, literal
from orchestrator.gateway.tools.headed_call import HeadedCall
from orchestrator.gateway.tools.notation import CallBody, Functions, Mark, Notation
from orchestrator.gateway.tools.schemas import Function

CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
WORD = r"[^\s\[\]{},]"
NAME = re.compile(f"{WORD}+")
# Newer models leave out the mark before arguments, or write an id before it.
HEAD = re.compile(rf"(?P<name>{WORD}+)(?:\[CALL_ID\]{WORD}*)?(?:\[ARGS\])?\s*(?=\{{)")
PARTIAL_HEAD = re.compile(
    rf"{WORD}+(?:\[[A-Z_]*\]?{WORD}*){{0,2}}\s*"
)  # what may still become a head


class Mistral(Notation):
    """`[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`, or `[TOOL_CALLS]name[ARGS]{…}` for each.

    A `[CALL_ID]` may follow the name; calls still get the server's own ids.
    """

    name = "mistral"
    begin = CALLS
    between = (CALLS, "[", ",", "]")
    inside = (CALL_ID, ARGS)
    id_letters = 9  # their templates refuse any other number
    id_prefix = ""

    def opens_call(self, text: str, after: str) -> bool | None:
        """A name comes right after the mark; objects come anywhere in the list."""
        return text.startswith("{") or (after == CALLS and NAME.match(text) is not None)

    def body(self, functions: Functions | None, text: str) -> CallBody:
        """A call in either form."""
        return CallObject() if text.startswith("{") else HeadedCall(HEAD, PARTIAL_HEAD)

    def lark(self, functions: Sequence[Function], mark: Mark, *, several: bool) -> str:
        """Allows both forms: the model's own probabilities favour the one it was trained on."""
        objects = either([call_object(function, "arguments") for function in functions])
        begin, more = mark(CALLS), ' (", " object)*' if several else ""
        start, rules = f'{begin} " "? "[" object{more} "]"', f"object: {objects}\n"
        named = [function for function in functions if NAME.fullmatch(function.name)]
        if named:
            start += " | named+" if several else " | named"
            heads = either([f"{literal(one.name)} arguments_{n}" for n, one in enumerate(named)])
            rules += f"named: {begin} ({heads})\nid: ({mark(CALL_ID)} /[a-zA-Z0-9]{{9}}/)?\n"
            rules += "".join(
                f"arguments_{index}: id {mark(ARGS)} {json_value(one.schema_of_arguments)}\n"
                for index, one in enumerate(named)
            )
        return f"start: {start}\n{rules}"


MISTRAL = Mistral()
