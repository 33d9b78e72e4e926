"""Splits an answer, as it is generated, into content and tool calls."""

from __future__ import annotations

import uuid

from orchestrator.gateway.held_space import HeldSpace
from orchestrator.gateway.parts import CallPart, Content, Parts
from orchestrator.gateway.tools.notation import CallBody, Functions, Notation
from orchestrator.text import overlap


class CallReader:
    """Reads one answer. Text that turns out not to be a call is content, unchanged.

    `functions`: those that may be called. In notations without marks, other names are no calls.
    `required`: the answer consists of calls; the rest of one that is cut off is not content.
    `max_calls`: the limit of calls; further ones are left out.
    """

    def __init__(
        self,
        notation: Notation,
        functions: Functions | None = None,
        *,
        required: bool = False,
        max_calls: int | None = None,
    ) -> None:
        self.calls = 0
        self._max_calls = max_calls
        self._over_limit = False  # the current call is beyond the limit
        self._notation = notation
        self._functions = functions
        self._required = required
        self._held = ""  # not yet assigned
        self._space = HeldSpace()  # white space before it
        self._passed_marks = ""  # marks before a call: content if no call follows
        self._call_read = False  # a call has been read since the marks before calls
        self._last_mark = ""  # the mark just passed; empty after a call
        self._parts = Parts()
        self._object: CallBody | None = None
        self._ids: set[str] = set()
        self._among_calls = self._at_start = notation.opens_answer

    @property
    def stage(self) -> object:
        """A value that changes when marks of calls are passed."""
        return self.calls, self._call_read and self._among_calls

    def feed(self, text: str) -> Parts:
        """Reads the next text; returns the parts that are certain by now."""
        self._held += text
        while self._step():
            pass
        return self._take_parts()

    def break_off(self) -> Parts:
        """Something other than content follows: text held back does not begin a call."""
        if self._object is None and not self._among_calls:
            self._add_content(self._space.before(self._held))
            self._held = ""
        return self._take_parts()

    def finish(self) -> Parts:
        """Reads the end: what was held back is content, except marks that end calls."""
        if self._object is not None and self._object.name is None:
            self._passed_marks += self._object.raw
        rest = self._passed_marks + self._space.before(self._held)
        marks = ("", self._notation.end, *self._notation.between)
        ends_calls = self.calls and any(mark.startswith(rest.strip()) for mark in marks)
        if not ends_calls and not self._required:
            self._parts.add(Content(rest))
        return self._take_parts()

    def _take_parts(self) -> Parts:
        taken, self._parts = self._parts, Parts()
        return taken

    def _step(self) -> bool:
        """Reads one piece of what is held; false if more text is needed."""
        if self._object is not None:
            return self._read_call(self._object)
        return self._read_mark() if self._among_calls else self._read_content()

    def _read_call(self, call: CallBody) -> bool:
        was_known = call.name is not None
        self._held = call.feed(self._held)
        arguments = call.new_arguments()
        if call.name is not None:
            if not was_known:
                self._begin_call(call.name, call.written_id, arguments)
            elif arguments and not self._over_limit:
                self._parts.add(CallPart(self.calls - 1, "", "", arguments))
        if not call.ended:
            return False
        if call.name is None:
            self._return_as_content(call.raw)
        self._object = None
        return True

    def _begin_call(self, name: str, written_id: str, arguments: str) -> None:
        self._passed_marks = ""
        self._call_read, self._at_start, self._last_mark = True, False, ""
        self._over_limit = self.calls == self._max_calls
        if self._over_limit:
            return
        call_id = self._new_id() if written_id in self._ids else written_id or self._new_id()
        self._ids.add(call_id)
        self._parts.add(CallPart(self.calls, call_id, name, arguments))
        self.calls += 1

    def _new_id(self) -> str:
        return self._notation.id_prefix + uuid.uuid4().hex[: self._notation.id_letters]

    def _read_mark(self) -> bool:
        """Reads between calls: a mark that may come there, or the beginning of the next call."""
        rest = self._held.lstrip()
        self._space.hold(self._held[: len(self._held) - len(rest)])
        self._held = rest
        opens_call = self._notation.opens_call(rest, self._last_mark) if rest else None
        if opens_call:
            self._pass_over(0)
            self._object = self._notation.body(self._functions, rest)
            return True
        marks = self._marks()
        if opens_call is None or any(mark != rest and mark.startswith(rest) for mark in marks):
            return False
        for mark in marks:
            if rest.startswith(mark):
                self._call_read = self._call_read and mark != self._notation.begin
                self._pass_over(len(mark))
                self._among_calls = mark != self._notation.end
                self._last_mark = mark
                return True
        self._return_as_content("")
        return True

    def _marks(self) -> list[str]:
        """The marks that may come next, the longest first."""
        begin = self._notation.begin if self._at_start else ""
        marks = {begin, self._notation.end, *self._notation.between} - {""}
        return sorted(marks, key=len, reverse=True)

    def _pass_over(self, length: int) -> None:
        passed = self._space.before(self._held[:length])
        if not self._call_read:
            self._passed_marks += passed
        self._held = self._held[length:]

    def _return_as_content(self, text: str) -> None:
        """No call came: what was passed over and this text are content."""
        self._parts.add(Content(self._passed_marks + text))
        self._passed_marks = ""
        self._among_calls = self._at_start = False

    def _read_content(self) -> bool:
        """Reads content up to a mark before calls, without the white space before the mark."""
        found = [
            (position, mark)
            for mark in self._notation.starts
            if (position := self._held.find(mark)) >= 0
        ]
        if found:
            position, mark = min(found)
            kept = self._held[:position].rstrip()
            if kept or not self.calls:
                self._add_content(self._space.before(kept) if kept else "")
            end = position if mark == self._notation.opening else position + len(mark)
            self._passed_marks += self._space.before(self._held[len(kept) : end])
            self._held, self._last_mark = self._held[end:], mark
            self._among_calls, self._call_read = True, False
            return True
        overlap_length = max(
            (overlap(self._held, mark) for mark in self._notation.starts), default=0
        )
        certain = self._held[: len(self._held) - overlap_length]
        if text := certain.rstrip():
            self._add_content(self._space.before(text))
        self._space.hold(certain[len(text) :])
        self._held = self._held[len(certain) :]
        return False

    def _add_content(self, content: str) -> None:
        self._parts.add(Content(self._passed_marks + content))
        self._passed_marks = ""
