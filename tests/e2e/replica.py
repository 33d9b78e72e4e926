"""An orchestrator with its own drafter, one of several replicas that share a phrase log."""

from __future__ import annotations

from tests.e2e.client import Client
from tests.support.measured import read_metric
from tests.support.ports import quiet_port

RECEIVED, REPLAYING = "phrases_received_total", "phrase_namespaces_replaying"


class Replica(Client):
    """A client of one orchestrator that also reads its metrics and its drafter's."""

    def __init__(self, address: str, metrics: dict[str, str]) -> None:
        super().__init__(address)
        self._metrics = metrics

    def metric(self, role: str, name: str) -> float:
        return read_metric(self._metrics[role], f"draftloop_{name}")

    def has_received(self, role: str, before: float, count: int) -> bool:
        """Whether `role` has `count` more phrases than `before` and has read the whole log."""
        received = self.metric(role, RECEIVED)
        return received >= before + count and not self.metric(role, REPLAYING)


def metrics_addresses() -> dict[str, str]:
    """Free metrics addresses, by role."""
    return {role: f"127.0.0.1:{quiet_port()}" for role in ("orchestrator", "drafter")}
