"""An orchestrator with a drafter of its own, among several on one phrase log."""

from __future__ import annotations

from tests.e2e.client import Client
from tests.support.measured import measured
from tests.support.ports import quiet_port

RECEIVED, REPLAYING = "phrases_received_total", "phrase_namespaces_replaying"


class Replica(Client):
    """One orchestrator, and where it and its drafter tell their figures."""

    def __init__(self, address: str, metrics: dict[str, str]) -> None:
        super().__init__(address)
        self._metrics = metrics

    def figure(self, role: str, name: str) -> float:
        return measured(self._metrics[role], f"draftloop_{name}")

    def has_heard(self, role: str, before: float, count: int) -> bool:
        """Whether it has so many more phrases of others than before, and all that the log held."""
        received = self.figure(role, RECEIVED)
        return received >= before + count and not self.figure(role, REPLAYING)


def metrics_addresses() -> dict[str, str]:
    """Free ones, by role."""
    return {role: f"127.0.0.1:{quiet_port()}" for role in ("orchestrator", "drafter")}
