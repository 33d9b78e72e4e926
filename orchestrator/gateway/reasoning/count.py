"""Counts the tokens of an answer that are reasoning, by the positions of their texts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """A part of an answer, in characters; without an end it is still growing."""

    start: int
    end: int | None


class TokenPlaces:
    """Where the text of each token begins."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._length = 0

    def add(self, texts: Sequence[str]) -> None:
        """Adds the next tokens."""
        for text in texts:
            self._starts.append(self._length)
            self._length += len(text)

    def within(self, span: Span) -> int:
        """Number of tokens with text in the span, or with the first bytes of a character in it."""
        first = bisect_left(self._starts, span.start)
        if first and self._end(first - 1) > span.start:
            first -= 1
        end = self._length if span.end is None else span.end
        return max(0, bisect_left(self._starts, end) - first)

    def _end(self, token: int) -> int:
        following = self._starts[token + 1 : token + 2]
        return following[0] if following else self._length
