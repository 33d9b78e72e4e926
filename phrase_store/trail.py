"""Which entries of a stream were read: some of them, to know the stream by when it goes back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from phrase_store.log import Entry

# One entry in so many is remembered, and so many of those: more than a log has by default.
EVERY = 64
MOST = 1024


class Trail:
    """Positions that were read, in order, the first of all among them."""

    def __init__(self) -> None:
        self._marks: deque[str] = deque(maxlen=MOST)
        self._read = 0

    def add(self, entries: Sequence[Entry]) -> None:
        """Takes in what was read next."""
        self._marks.extend(entry.position for entry in entries[-self._read % EVERY :: EVERY])
        self._read += len(entries)

    def back_to(self, end: str) -> str | None:
        """The last known position that is not beyond `end`; those beyond it are forgotten."""
        while self._marks and numbers(self._marks[-1]) > numbers(end):
            self._marks.pop()
        return self._marks[-1] if self._marks else None


def numbers(position: str) -> tuple[int, ...]:
    """What positions are ordered by."""
    return tuple(int(part) for part in position.split("-")) if position else (0,)
