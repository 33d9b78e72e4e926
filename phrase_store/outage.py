"""Logs when the phrase log is lost, once or twice, and once when it is back; for a whole store."""

from __future__ import annotations

import threading
from typing import Protocol
from weakref import WeakSet

from draftloop import logs

log = logs.get(__name__)


class Way(Protocol):
    """One thread's connection to the log."""

    def forgiven_by(self, other: Way) -> bool:
        """Whether its own calls are expected to succeed, now that `other`'s have."""


class Outage:
    """The outage state that all namespaces of a store share. Thread-safe.

    Every way has its own circuit breaker, and namespaces come and go. If each of them logged its
    own loss, an outage would produce a log line for every request of a new tenant.
    """

    def __init__(self) -> None:
        self._door = threading.Lock()
        self._lost: WeakSet[Way] = WeakSet()
        self._left: Way | None = None  # one that left while its calls failed
        self._told = False
        self._answered = False  # a reason given by the log itself was logged

    def loses(self, way: Way, task: str, reason: str, *, answered: bool = False) -> None:
        """Records that a way's calls fail; logs it if this begins the outage.

        `answered`: the reason comes from the log itself. The first such reason is logged too: a
        server that comes back with another password looks like a closed connection at first.
        """
        with self._door:
            self._lost.add(way)
            tells = not self._told or (answered and not self._answered)
            self._told, self._answered = True, self._answered or answered
        if tells:
            log.warning("phrase log lost", task=task, reason=reason)

    def works(self, way: Way) -> None:
        """Records that a way's call succeeded; the outage ends once all others' calls do too."""
        if not self._told:
            return
        with self._door:
            self._lost.discard(way)
            lost = [each for each in (*self._lost, self._left) if each is not None]
            over = self._told and all(each.forgiven_by(way) for each in lost)
            if over:
                self._told, self._answered, self._left = False, False, None
        if over:
            log.info("phrase log back")

    def leaves(self, way: Way) -> None:
        """Records that a way makes no more calls.

        That its namespace was evicted does not end an outage. Of several such ways the one is kept
        that is harder to forgive: a log that refuses writes may still be read by all others.
        """
        with self._door:
            fails = self._told and way in self._lost
            if fails and (self._left is None or self._left.forgiven_by(way)):
                self._left = way
            self._lost.discard(way)
