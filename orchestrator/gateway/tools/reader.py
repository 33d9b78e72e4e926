"""An answer that may call tools, taken apart while it grows."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import NamedTuple

from orchestrator.gateway.tools.call_object import CallObject
from orchestrator.gateway.tools.notation import Notation
from orchestrator.text import overlap


class CallPart(NamedTuple):
    """Of one call: the first has id and name, and each some more of the arguments' text."""

    call: int
    call_id: str
    name: str
    arguments: str


class Parts(NamedTuple):
    """What some text made certain."""

    content: str
    calls: list[CallPart]


class CallReader:
    """Reads one answer. What turns out to be no call is content, as it stands.

    `names`: what may be called. Where nothing marks calls, an object of another name is none.
    `required`: the answer is nothing but calls, and what is left of a cut one is no content.
    """

    def __init__(
        self, notation: Notation, names: Collection[str] | None = None, *, required: bool = False
    ) -> None:
        self.calls = 0
        self._notation = notation
        self._names = names if notation.opens_answer else None
        self._required = required
        self._held = ""  # not yet understood
        self._passed = ""  # marks before a call: content, if none follows
        self._called = False  # since the calls began
        self._content = ""
        self._parts: list[CallPart] = []
        self._object: CallObject | None = None
        self._among_calls = self._at_start = notation.opens_answer

    def feed(self, text: str) -> Parts:
        """The next text."""
        self._held += text
        while self._step():
            pass
        return self._taken()

    def finish(self) -> Parts:
        """There is no more text: what was held back is content, but for what ends calls."""
        if self._object is not None and self._object.name is None:
            self._passed += self._object.raw
        rest = self._passed + self._held
        marks = ("", self._notation.end, *self._notation.between)
        ends_calls = self.calls and any(mark.startswith(rest.strip()) for mark in marks)
        if not ends_calls and not self._required:
            self._content += rest
        return self._taken()

    def _taken(self) -> Parts:
        taken = Parts(self._content, self._parts)
        self._content, self._parts = "", []
        return taken

    def _step(self) -> bool:
        """One piece of what is held; false where more text is needed."""
        if self._object is not None:
            return self._read_on(self._object)
        return self._read_mark() if self._among_calls else self._read_content()

    def _read_on(self, call: CallObject) -> bool:
        self._held = call.feed(self._held)
        known = call.name is not None
        arguments = call.new_arguments()
        if call.name is not None:
            if not known:
                self._begin_call(call.name, arguments)
            elif arguments:
                self._parts.append(CallPart(self.calls - 1, "", "", arguments))
        if not call.ended:
            return False
        if call.name is None:
            self._give_back(call.raw)
        self._object = None
        return True

    def _begin_call(self, name: str, arguments: str) -> None:
        call_id = self._notation.id_prefix + uuid.uuid4().hex[: self._notation.id_letters]
        self._parts.append(CallPart(self.calls, call_id, name, arguments))
        self.calls += 1
        self._passed = ""
        self._called, self._at_start = True, False

    def _read_mark(self) -> bool:
        """Between calls: marks that may stand there, or the next one's brace."""
        space = len(self._held) - len(self._held.lstrip())
        rest = self._held[space:]
        if rest.startswith("{"):
            self._pass_over(space)
            self._object = CallObject(self._names)
            return True
        begin = (self._notation.begin,) if self._at_start else ()
        marks = [mark for mark in (*begin, self._notation.end, *self._notation.between) if mark]
        for mark in marks:
            if rest.startswith(mark):
                self._pass_over(space + len(mark))
                self._among_calls = mark != self._notation.end
                return True
        if any(mark.startswith(rest) for mark in marks) or not rest:
            return False
        self._give_back("")
        return True

    def _pass_over(self, letters: int) -> None:
        if not self._called:
            self._passed += self._held[:letters]
        self._held = self._held[letters:]

    def _give_back(self, text: str) -> None:
        """It was no call: content goes on where the calls seemed to begin."""
        self._content += self._passed + text
        self._passed = ""
        self._among_calls = self._at_start = False

    def _read_content(self) -> bool:
        """Up to the mark before calls, without the white space before it."""
        begin = "" if self._notation.opens_answer else self._notation.begin
        before, mark, rest = self._held.partition(begin) if begin else (self._held, "", "")
        if mark:
            kept = before.rstrip()
            if kept or not self.calls:
                self._content += self._passed + kept
                self._passed = ""
            self._passed += before[len(kept) :] + mark
            self._held, self._among_calls, self._called = rest, True, False
            return True
        cut = len(before) - overlap(before, begin)
        cut = len(before[:cut].rstrip())
        if cut:
            self._content += self._passed + before[:cut]
            self._passed = ""
        self._held = before[cut:]
        return False
