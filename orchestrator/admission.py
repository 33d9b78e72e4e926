"""A limit on concurrent requests; those beyond it are refused as Overloaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from draftloop.errors import Overloaded


class RequestLimit:
    """Counts running requests."""

    def __init__(self, limit: int, label: str = "requests") -> None:
        self._limit = limit
        self._label = label
        self.running = 0

    @contextlib.contextmanager
    def admit(self, count: int = 1) -> Iterator[None]:
        """Admits `count` requests while entered. Raises Overloaded if not all of them fit."""
        if self.running + count > self._limit:
            raise Overloaded(f"{self._label}: at most {self._limit} run at once")
        self.running += count
        try:
            yield
        finally:
            self.running -= count
