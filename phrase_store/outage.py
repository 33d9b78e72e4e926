"""Whether the log is lost, as people are told of it: once or twice, and once when it is back."""

from __future__ import annotations

import threading
from typing import Protocol
from weakref import WeakSet

from draftloop import logs

log = logs.get(__name__)


class Way(Protocol):
    """Somebody who calls the log."""

    def forgiven_by(self, other: Way) -> bool:
        """Whether his calls would go through by now, as the other's success shows or he knows."""


class Outage:
    """What all namespaces of a store have in common; any thread may call anything.

    Each way has a breaker of its own, and namespaces come and go: if each told of its own loss, an
    outage would be a line for every request of another tenant.
    """

    def __init__(self) -> None:
        self._door = threading.Lock()
        self._lost: WeakSet[Way] = WeakSet()
        self._told = False
        self._answered = False  # and told of what was answered

    def loses(self, way: Way, task: str, reason: str, *, answered: bool = False) -> None:
        """Takes in that calls do not go through any more.

        That is told once more where the log has `answered` why: a server that comes back with
        another password was first one that closed a connection.
        """
        with self._door:
            self._lost.add(way)
            tells = not self._told or (answered and not self._answered)
            self._told, self._answered = True, self._answered or answered
        if tells:
            log.warning("phrase log lost", task=task, reason=reason)

    def works(self, way: Way) -> None:
        """Takes in that a call went well: it is over once all others' calls do, too."""
        if not self._told:
            return
        with self._door:
            self._lost.discard(way)
            over = self._told and all(each.forgiven_by(way) for each in self._lost)
            self._told, self._answered = self._told and not over, self._answered and not over
        if over:
            log.info("phrase log back")

    def leaves(self, way: Way) -> None:
        """Takes in that it will not call any more."""
        with self._door:
            self._lost.discard(way)
