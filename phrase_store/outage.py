"""Logs the loss of the phrase log once, and its return once, for all namespaces of a store."""

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
        self._told = False

    def loses(self, way: Way, task: str, reason: str) -> None:
        """Records that a way's calls fail; logs it if this begins the outage."""
        with self._door:
            self._lost.add(way)
            first, self._told = not self._told, True
        if first:
            log.warning("phrase log lost", task=task, reason=reason)

    def works(self, way: Way) -> None:
        """Records that a way's call succeeded; the outage ends once all others' calls do too."""
        if not self._told:
            return
        with self._door:
            self._lost.discard(way)
            over = self._told and all(each.forgiven_by(way) for each in self._lost)
            self._told = self._told and not over
        if over:
            log.info("phrase log back")

    def leaves(self, way: Way) -> None:
        """Records that a way makes no more calls."""
        with self._door:
            self._lost.discard(way)
