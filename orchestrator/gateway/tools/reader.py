"""An answer that may call tools, taken apart while it grows."""

from __future__ import annotations

import uuid

from orchestrator.gateway.held_space import HeldSpace
from orchestrator.gateway.parts import CallPart, Content, Parts
from orchestrator.gateway.tools.notation import CallBody, Functions, Notation
from orchestrator.text import overlap


class CallReader:
    """Reads one answer. What turns out to be no call is content, as it stands.

    `functions`: what may be called. Where nothing marks calls, one of another name is none.
    `required`: the answer is nothing but calls, and what is left of a cut one is no content.
    `most`: calls, of which further ones are left out.
    """

    def __init__(
        self,
        notation: Notation,
        functions: Functions | None = None,
        *,
        required: bool = False,
        most: int | None = None,
    ) -> None:
        self.calls = 0
        self._most = most
        self._beyond = False  # what is being read is one call too many
        self._notation = notation
        self._functions = functions
        self._required = required
        self._held = ""  # not yet understood
        self._space = HeldSpace()  # and before it
        self._passed = ""  # marks before a call: content, if none follows
        self._called = False  # since the calls began
        self._last_mark = ""  # before what comes next, unless that is a call
        self._parts = Parts()
        self._object: CallBody | None = None
        self._ids: set[str] = set()
        self._among_calls = self._at_start = notation.opens_answer

    @property
    def stage(self) -> object:
        """Another one where marks of calls have been passed."""
        return self.calls, self._called and self._among_calls

    def feed(self, text: str) -> Parts:
        """The next text."""
        self._held += text
        while self._step():
            pass
        return self._taken()

    def break_off(self) -> Parts:
        """Something else comes next: what was held back is no beginning of a call."""
        if self._object is None and not self._among_calls:
            self._say(self._space.before(self._held))
            self._held = ""
        return self._taken()

    def finish(self) -> Parts:
        """There is no more text: what was held back is content, but for what ends calls."""
        if self._object is not None and self._object.name is None:
            self._passed += self._object.raw
        rest = self._passed + self._space.before(self._held)
        marks = ("", self._notation.end, *self._notation.between)
        ends_calls = self.calls and any(mark.startswith(rest.strip()) for mark in marks)
        if not ends_calls and not self._required:
            self._parts.add(Content(rest))
        return self._taken()

    def _taken(self) -> Parts:
        taken, self._parts = self._parts, Parts()
        return taken

    def _step(self) -> bool:
        """One piece of what is held; false where more text is needed."""
        if self._object is not None:
            return self._read_on(self._object)
        return self._read_mark() if self._among_calls else self._read_content()

    def _read_on(self, call: CallBody) -> bool:
        known = call.name is not None
        self._held = call.feed(self._held)
        arguments = call.new_arguments()
        if call.name is not None:
            if not known:
                self._begin_call(call.name, call.written_id, arguments)
            elif arguments and not self._beyond:
                self._parts.add(CallPart(self.calls - 1, "", "", arguments))
        if not call.ended:
            return False
        if call.name is None:
            self._give_back(call.raw)
        self._object = None
        return True

    def _begin_call(self, name: str, written_id: str, arguments: str) -> None:
        self._passed = ""
        self._called, self._at_start, self._last_mark = True, False, ""
        self._beyond = self.calls == self._most
        if self._beyond:
            return
        call_id = self._own_id() if written_id in self._ids else written_id or self._own_id()
        self._ids.add(call_id)
        self._parts.add(CallPart(self.calls, call_id, name, arguments))
        self.calls += 1

    def _own_id(self) -> str:
        return self._notation.id_prefix + uuid.uuid4().hex[: self._notation.id_letters]

    def _read_mark(self) -> bool:
        """Between calls: marks that may stand there, or the beginning of the next one."""
        rest = self._held.lstrip()
        self._space.hold(self._held[: len(self._held) - len(rest)])
        self._held = rest
        opens = self._notation.opens_call(rest, self._last_mark) if rest else None
        if opens:
            self._pass_over(0)
            self._object = self._notation.body(self._functions, rest)
            return True
        marks = self._marks()
        if opens is None or any(mark != rest and mark.startswith(rest) for mark in marks):
            return False
        for mark in marks:
            if rest.startswith(mark):
                self._called = self._called and mark != self._notation.begin
                self._pass_over(len(mark))
                self._among_calls = mark != self._notation.end
                self._last_mark = mark
                return True
        self._give_back("")
        return True

    def _marks(self) -> list[str]:
        """Those that may come next, the longest first."""
        begin = self._notation.begin if self._at_start else ""
        marks = {begin, self._notation.end, *self._notation.between} - {""}
        return sorted(marks, key=len, reverse=True)

    def _pass_over(self, letters: int) -> None:
        passed = self._space.before(self._held[:letters])
        if not self._called:
            self._passed += passed
        self._held = self._held[letters:]

    def _give_back(self, text: str) -> None:
        """It was no call: content goes on where the calls seemed to begin."""
        self._parts.add(Content(self._passed + text))
        self._passed = ""
        self._among_calls = self._at_start = False

    def _read_content(self) -> bool:
        """Up to the mark before calls, without the white space before it."""
        found = [(at, mark) for mark in self._notation.starts if (at := self._held.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            kept = self._held[:at].rstrip()
            if kept or not self.calls:
                self._say(self._space.before(kept) if kept else "")
            end = at if mark == self._notation.opening else at + len(mark)
            self._passed += self._space.before(self._held[len(kept) : end])
            self._held, self._last_mark = self._held[end:], mark
            self._among_calls, self._called = True, False
            return True
        held = max((overlap(self._held, mark) for mark in self._notation.starts), default=0)
        certain = self._held[: len(self._held) - held]
        if said := certain.rstrip():
            self._say(self._space.before(said))
        self._space.hold(certain[len(said) :])
        self._held = self._held[len(certain) :]
        return False

    def _say(self, content: str) -> None:
        self._parts.add(Content(self._passed + content))
        self._passed = ""
