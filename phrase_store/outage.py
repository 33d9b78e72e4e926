"""Logs when the phrase log is lost, once or twice, and once when it is back; for a whole store."""

from __future__ import annotations

import threading
from typing import Protocol
from weakref import WeakSet

from draftloop import logs

log = logs.get(__name__)


class LogConnection(Protocol):
    """One thread's connection to the log."""

    def recovers_with(self, other: LogConnection) -> bool:
        """Whether its own calls are expected to succeed, now that `other`'s have."""


class Outage:
    """The outage state that all namespaces of a store share. Thread-safe.

    Every connection has its own circuit breaker, and namespaces come and go. If each of them logged
    its own loss, an outage would produce a log line for every request of a new tenant.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost: WeakSet[LogConnection] = WeakSet()
        self._removed: LogConnection | None = None  # one that was removed while its calls failed
        self._is_logged = False
        self._answered = False  # a reason given by the log itself was logged

    def call_failed(
        self, connection: LogConnection, task: str, reason: str, *, answered: bool = False
    ) -> None:
        """Records that a connection's calls fail; logs it if this begins the outage.

        `answered`: the reason comes from the log itself. The first such reason is logged too: a
        server that comes back with another password looks like a closed connection at first.
        """
        with self._lock:
            self._lost.add(connection)
            should_log = not self._is_logged or (answered and not self._answered)
            self._is_logged, self._answered = True, self._answered or answered
        if should_log:
            log.warning("phrase log lost", task=task, reason=reason)

    def call_succeeded(self, connection: LogConnection) -> None:
        """Records that a connection's call succeeded; the outage ends once all others' do too."""
        if not self._is_logged:
            return
        with self._lock:
            self._lost.discard(connection)
            lost = [each for each in (*self._lost, self._removed) if each is not None]
            is_over = self._is_logged and all(each.recovers_with(connection) for each in lost)
            if is_over:
                self._is_logged, self._answered, self._removed = False, False, None
        if is_over:
            log.info("phrase log back")

    def remove(self, connection: LogConnection) -> None:
        """Records that a connection makes no more calls.

        That its namespace was evicted does not end an outage. Of several such connections the one
        is kept whose recovery takes more: a log that refuses writes may still be readable.
        """
        with self._lock:
            failed = self._is_logged and connection in self._lost
            if failed and (self._removed is None or self._removed.recovers_with(connection)):
                self._removed = connection
            self._lost.discard(connection)
