"""A sample of the positions read from a stream, by which to recognize the stream if it shrinks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from phrase_store.log import Entry

# One entry in EVERY is remembered, MAX_ENTRIES of them: together more than a log holds by default.
EVERY = 64
MAX_ENTRIES = 1024


class Trail:
    """Positions that were read, in order, beginning with the very first one."""

    def __init__(self) -> None:
        self._marks: deque[str] = deque(maxlen=MAX_ENTRIES)
        self._read = 0

    def add(self, entries: Sequence[Entry]) -> None:
        """Records the entries that were read next."""
        self._marks.extend(entry.position for entry in entries[-self._read % EVERY :: EVERY])
        self._read += len(entries)

    def back_to(self, end: str) -> str | None:
        """The last remembered position not beyond `end`, or None; forgets those beyond it."""
        while self._marks and numbers(self._marks[-1]) > numbers(end):
            self._marks.pop()
        return self._marks[-1] if self._marks else None


def numbers(position: str) -> tuple[int, ...]:
    """The sort key of a position."""
    return tuple(int(part) for part in position.split("-")) if position else (0,)
