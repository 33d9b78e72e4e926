"""Phrase logs within one process: in tests, stores share one as processes share Redis."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import islice
from weakref import WeakValueDictionary

from phrase_store.log import Entry, LogOptions, PhraseLog


class MemoryLog(PhraseLog):
    """Records in a bounded queue; position n is the n-th record since the log began."""

    def __init__(self, max_length: int) -> None:
        self._records: deque[bytes] = deque(maxlen=max_length)
        self._appended = 0
        self._changed = threading.Condition()

    def append(self, records: Sequence[bytes]) -> None:
        with self._changed:
            self._records.extend(records)
            self._appended += len(records)
            self._changed.notify_all()

    def read(self, after: str, limit: int) -> list[Entry]:
        with self._changed:
            return self._after(after, limit)

    def follow(self, after: str, limit: int, timeout_s: float) -> list[Entry]:
        with self._changed:
            self._changed.wait_for(lambda: self._appended > int(after or 0), timeout_s)
            return self._after(after, limit)

    def _after(self, after: str, limit: int) -> list[Entry]:
        dropped = self._appended - len(self._records)
        start = max(int(after or 0), dropped)
        records = islice(self._records, start - dropped, start - dropped + limit)
        return [Entry(str(start + 1 + place), record) for place, record in enumerate(records)]

    def length(self) -> int:
        return len(self._records)

    def clear(self, word: bytes) -> None:
        with self._changed:
            self._records.clear()
            self._records.append(word)
            self._appended += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing to free: other stores of this process may share the log."""


# By URL and namespace, as long as somebody refers to them: the number of tenants is unbounded.
_logs: WeakValueDictionary[tuple[str, str], MemoryLog] = WeakValueDictionary()
_opening = threading.Lock()


def check(url: str) -> None:
    """Accepts every name."""


def check_files(url: str) -> None:
    """Does nothing: there are no files."""


def connect(url: str, namespace: str, options: LogOptions) -> MemoryLog:
    """The process's log of that name; the first to open it sets its length."""
    with _opening:
        return _logs.setdefault((url, namespace), MemoryLog(options.max_length))


def namespaces(url: str, options: LogOptions) -> list[str]:
    """Names of the namespaces that are open."""
    with _opening:
        return sorted(namespace for opened, namespace in _logs if opened == url)
