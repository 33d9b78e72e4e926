"""Calls of gpt-oss: messages that are addressed to functions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from draftloop.errors import InvalidInput
from orchestrator.gateway.harmony import ALL, CALL, CALL_BEGIN, CHANNEL, CONSTRAIN, MESSAGE
from orchestrator.gateway.tools.grammar import either, json_value, literal
from orchestrator.gateway.tools.named_object import NamedObject
from orchestrator.gateway.tools.notation import Functions, Mark, Notation
from orchestrator.gateway.tools.schemas import MAX_NAME_LETTERS, Function

WORD = re.compile(r"[^\s<]+")
HEAD = re.compile(rf"([^\s<]+)[^<]*(?:{re.escape(CONSTRAIN)}[^<]*)?{re.escape(MESSAGE)}")
MAX_HEAD_LENGTH = MAX_NAME_LETTERS + 128


class Harmony(Notation):
    """`<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>`."""

    name = "harmony"
    begin = CALL_BEGIN
    end = CALL

    @property
    def marks(self) -> tuple[str, ...]:
        return ALL

    def opens_call(self, text: str, after: str) -> bool | None:
        """A call begins right after the mark, with the name."""
        return after == CALL_BEGIN

    def body(self, functions: Functions | None, text: str) -> MessageCall:
        """A call of any name, since marks tell that it is a call."""
        return MessageCall()

    def lark(self, functions: Sequence[Function], mark: Mark, *, several: bool) -> str:
        """One call only: the token that ends a call also ends the answer."""
        calls = either([_call(function, mark(MESSAGE)) for function in functions])
        begin = f"{mark(CHANNEL)} {literal(CALL_BEGIN.removeprefix(CHANNEL))}"
        kind = f'(" " {mark(CONSTRAIN)} "json")?'
        return f"start: {begin} call\ncall: {calls}\nkind: {kind}\n"


def _call(function: Function, message: str) -> str:
    if not WORD.fullmatch(function.name):
        rule = "must have names without spaces and <, as this model writes calls"
        raise InvalidInput("tools", rule, function.name)
    return f"{literal(function.name)} kind {message} {json_value(function.schema_of_arguments)}"


class MessageCall(NamedObject):
    """A name, the rest of the header, and an object; a missing object counts as empty."""

    def feed(self, text: str) -> str:
        if self.name is None:
            self.raw += text
            return self._read_head()
        return self._read_object(text)

    def _read_head(self) -> str:
        """Reads the header, up to the brace after it."""
        head = HEAD.match(self.raw[:MAX_HEAD_LENGTH])
        if head is None:
            return "" if len(self.raw) <= MAX_HEAD_LENGTH else self._end_as_no_call()
        rest = self.raw[head.end() :].lstrip()
        if rest.startswith("{"):
            self.name = head[1]
            return self._read_object(rest)
        if rest.startswith(CALL):
            self.name, self._new, self.ended = head[1], "{}", True
            return rest
        return "" if CALL.startswith(rest) else self._end_as_no_call()


HARMONY = Harmony()
