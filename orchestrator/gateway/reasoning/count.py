"""How many tokens of an answer are reasoning, by where their texts stand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """A part of an answer, in letters; one without an end goes on."""

    start: int
    end: int | None


class TokenPlaces:
    """Where the text of every token begins."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._letters = 0

    def add(self, texts: Sequence[str]) -> None:
        """The next tokens."""
        for text in texts:
            self._starts.append(self._letters)
            self._letters += len(text)

    def within(self, span: Span) -> int:
        """How many have some of their text there, or are the first bytes of a character there."""
        first = bisect_left(self._starts, span.start)
        if first and self._end(first - 1) > span.start:
            first -= 1
        end = self._letters if span.end is None else span.end
        return max(0, bisect_left(self._starts, end) - first)

    def _end(self, token: int) -> int:
        behind = self._starts[token + 1 : token + 2]
        return behind[0] if behind else self._letters
