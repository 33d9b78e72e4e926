"""Base of notations with a section for calls, and marks around each call in it."""

from __future__ import annotations

import functools
import re

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.headed_call import HeadedCall
from orchestrator.gateway.tools.notation import Functions, Notation
from orchestrator.gateway.tools.schemas import Function

WORD = r"[^\s<`{]+"  # a name
NAME = re.compile(WORD)


class Sectioned(Notation):
    """A section of calls; each call is a `head` and an object between marks.

    `section` begins the section and `end` ends it; `begin` and `call_end` are around each call.
    Models sometimes forget `section` or `begin`.
    """

    section: str
    call_end: str
    head: re.Pattern[str]

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.section, self.begin)

    def opens_call(self, text: str, after: str) -> bool | None:
        """A call begins right after the marks, with the head."""
        marks = (*self.between, self.end)
        is_mark = any(mark.startswith(text) or text.startswith(mark) for mark in marks)
        return after in self.starts and not is_mark

    def body(self, functions: Functions | None, text: str) -> HeadedCall:
        """A call of any name, since marks tell that it is a call."""
        return HeadedCall(self.head, self._partial_head)

    @functools.cached_property
    def _partial_head(self) -> re.Pattern[str]:
        """What may still become a head: anything up to a mark that no head contains."""
        ends = (*self.starts, self.call_end, self.end)
        marks = "|".join(re.escape(mark) for mark in ends)
        return re.compile(f"(?s:(?!{marks}).)*")


def required_name(function: Function) -> str:
    """The function's name. Raises InvalidInput if a head cannot hold it."""
    if not NAME.fullmatch(function.name):
        rule = "must have names without spaces, <, ` and {, as this model writes calls"
        raise InvalidInput("tools", rule, function.name)
    return function.name
