"""An answer that may begin with reasoning, taken apart while it grows."""

from __future__ import annotations

from orchestrator.gateway.held_space import HeldSpace
from orchestrator.gateway.parts import Content, Parts, Reasoning
from orchestrator.gateway.reasoning.count import Span
from orchestrator.gateway.reasoning.marks import Marks
from orchestrator.text import overlap


class ReasoningReader:
    """Reads one answer. `opened`: the prompt has said the first mark already.

    Line ends around the marks are neither reasoning nor content. `spans`: where the reasoning
    stands in it, between the marks.
    """

    def __init__(self, marks: Marks, *, opened: bool) -> None:
        self._marks = marks
        self._held = ""  # not yet understood
        self._space = HeldSpace()  # and before it
        self._at_start = not opened  # nothing but space so far
        self._inside = opened
        self._told = False  # something of the part that is being read
        self._letters = 0
        self.spans = [Span(0, None)] if opened else []

    @property
    def stage(self) -> object:
        """Another one where a mark has been passed, and the line ends behind it."""
        return tuple(self.spans), self._told or not self.spans

    def feed(self, text: str) -> Parts:
        """The next text."""
        parts = Parts()
        self._held += text
        self._letters += len(text)
        if self._at_start and not self._begun():
            return parts
        if self._inside:
            parts.add(Reasoning(self._reasoning()))
        if not self._inside:
            parts.add(Content(self._content()))
        return parts

    def finish(self) -> Parts:
        """There is no more text: what was held back belongs to where it stands."""
        parts = Parts()
        rest, self._held = self._held, ""
        if self._inside:
            parts.add(Reasoning(self._trimmed(self._space.before(rest)).rstrip("\n")))
        else:
            parts.add(Content(self._space.before(rest) if self._at_start else self._trimmed(rest)))
        return parts

    def _begun(self) -> bool:
        """Whether it is known if the answer begins with the mark."""
        begin, said = self._marks.begin, self._held.lstrip()
        self._space.hold(self._held[: len(self._held) - len(said)])
        self._held = said
        if begin.startswith(said) and said != begin:
            return False
        self._at_start = False
        if said.startswith(begin):
            self._held, self._inside = said.removeprefix(begin), True
            self._space.drop()
            self.spans = [Span(self._letters - len(self._held), None)]
        else:
            self._held = self._space.before(said)
            self._told = True  # an answer without reasoning stays as it is
        return True

    def _reasoning(self) -> str:
        """Up to the mark at its end, and no further than is certain."""
        before, mark, rest = self._held.partition(self._marks.end)
        certain = before if mark else before[: len(before) - overlap(before, self._marks.end)]
        told = certain.rstrip("\n")
        reasoning = self._trimmed(self._space.before(told)) if told else ""
        if mark:
            self._space.drop()
            self._held, self._inside, self._told = rest, False, False
            self.spans = [Span(self.spans[0].start, self._letters - len(rest) - len(mark))]
        else:
            self._space.hold(certain[len(told) :])
            self._held = before[len(certain) :]
        return reasoning

    def _content(self) -> str:
        content, self._held = self._held, ""
        return self._trimmed(content)

    def _trimmed(self, text: str) -> str:
        """Without line ends where a part begins."""
        text = text if self._told else text.lstrip("\n")
        self._told = self._told or bool(text)
        return text
