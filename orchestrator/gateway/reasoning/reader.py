"""Splits an answer, as it is generated, into reasoning at its start and content."""

from __future__ import annotations

from orchestrator.gateway.held_space import HeldSpace
from orchestrator.gateway.parts import Content, Parts, Reasoning
from orchestrator.gateway.reasoning.count import Span
from orchestrator.gateway.reasoning.marks import Marks
from orchestrator.text import overlap


class ReasoningReader:
    """Reads one answer. `opened`: the prompt already has the first mark.

    Line ends around the marks are neither reasoning nor content. `spans`: where the reasoning is in
    the answer, between the marks.
    """

    def __init__(self, marks: Marks, *, opened: bool) -> None:
        self._marks = marks
        self._held = ""  # not yet assigned
        self._space = HeldSpace()  # white space before it
        self._at_start = not opened  # nothing but white space so far
        self._in_reasoning = opened
        self._has_text = False  # some text of the current part has been passed on
        self._length = 0
        self.spans = [Span(0, None)] if opened else []

    @property
    def stage(self) -> object:
        """A value that changes when a mark and the line ends after it have been passed."""
        return tuple(self.spans), self._has_text or not self.spans

    def feed(self, text: str) -> Parts:
        """Reads the next text; returns the parts that are certain by now."""
        parts = Parts()
        self._held += text
        self._length += len(text)
        if self._at_start and not self._read_start():
            return parts
        if self._in_reasoning:
            parts.add(Reasoning(self._reasoning()))
        if not self._in_reasoning:
            parts.add(Content(self._content()))
        return parts

    def finish(self) -> Parts:
        """Reads the end: what was held back belongs to the part that it is in."""
        parts = Parts()
        rest, self._held = self._held, ""
        if self._in_reasoning:
            parts.add(Reasoning(self._trim_start(self._space.before(rest)).rstrip("\n")))
        else:
            parts.add(
                Content(self._space.before(rest) if self._at_start else self._trim_start(rest))
            )
        return parts

    def _read_start(self) -> bool:
        """Reads the beginning; whether it is known by now if the answer begins with the mark."""
        begin, stripped = self._marks.begin, self._held.lstrip()
        self._space.hold(self._held[: len(self._held) - len(stripped)])
        self._held = stripped
        if begin.startswith(stripped) and stripped != begin:
            return False
        self._at_start = False
        if stripped.startswith(begin):
            self._held, self._in_reasoning = stripped.removeprefix(begin), True
            self._space.drop()
            self.spans = [Span(self._length - len(self._held), None)]
        else:
            self._held = self._space.before(stripped)
            self._has_text = True  # an answer without reasoning stays as it is
        return True

    def _reasoning(self) -> str:
        """The next reasoning: up to the mark at its end, or as far as it is certain."""
        before, mark, rest = self._held.partition(self._marks.end)
        certain = before if mark else before[: len(before) - overlap(before, self._marks.end)]
        text = certain.rstrip("\n")
        reasoning = self._trim_start(self._space.before(text)) if text else ""
        if mark:
            self._space.drop()
            self._held, self._in_reasoning, self._has_text = rest, False, False
            self.spans = [Span(self.spans[0].start, self._length - len(rest) - len(mark))]
        else:
            self._space.hold(certain[len(text) :])
            self._held = before[len(certain) :]
        return reasoning

    def _content(self) -> str:
        content, self._held = self._held, ""
        return self._trim_start(content)

    def _trim_start(self, text: str) -> str:
        """The text without line ends at the beginning of a part."""
        text = text if self._has_text else text.lstrip("\n")
        self._has_text = self._has_text or bool(text)
        return text
