"""Calls that stand in a section of their own, each of them between marks again."""

from __future__ import annotations

import functools
import re

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.headed_call import HeadedCall
from orchestrator.gateway.tools.notation import Functions, Notation
from orchestrator.gateway.tools.schemas import Function

WORD = r"[^\s<`{]+"  # of names
NAME = re.compile(WORD)


class Sectioned(Notation):
    """Marks of a section, in it those of each call, and in these a `head` and an object.

    `section` opens it, `begin` and `call_end` stand around a call, and `end` ends the section.
    Models forget the first one now and then, or the second.
    """

    section: str
    call_end: str
    head: re.Pattern[str]

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.section, self.begin)

    def opens_call(self, text: str, after: str) -> bool | None:
        """Right behind the marks, with the head."""
        marks = (*self.between, self.end)
        is_mark = any(mark.startswith(text) or text.startswith(mark) for mark in marks)
        return after in self.starts and not is_mark

    def body(self, functions: Functions | None, text: str) -> HeadedCall:
        """Whatever its name: marks tell that it is a call."""
        return HeadedCall(self.head, self._begun)

    @functools.cached_property
    def _begun(self) -> re.Pattern[str]:
        """What may become a head: anything until marks that stand in none."""
        ends = (*self.starts, self.call_end, self.end)
        marks = "|".join(re.escape(mark) for mark in ends)
        return re.compile(f"(?s:(?!{marks}).)*")


def required_name(function: Function) -> str:
    """The function's. Raises InvalidInput where a head cannot hold it."""
    if not NAME.fullmatch(function.name):
        rule = "must have names without spaces, <, ` and {, as this model writes calls"
        raise InvalidInput("tools", rule, function.name)
    return function.name
