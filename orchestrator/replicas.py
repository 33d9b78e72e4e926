"""Replicas of one role: which to try next, and when a failed one may be tried again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from draftloop.rpc.channel import open_channel

FIRST_REST_S = 0.25
LONGEST_REST_S = 5.0


@dataclass(slots=True)
class Replica:
    """One address with its channel and how it fares."""

    address: str
    channel: grpc.aio.Channel
    sessions: int = 0
    failures: int = 0
    resting_until: float = field(default=0.0)

    @property
    def resting(self) -> bool:
        """Whether it failed so recently that asking again would be a waste."""
        return time.monotonic() < self.resting_until

    def failed(self) -> None:
        """Lets it rest, longer with every failure in a row."""
        self.failures += 1
        rest = min(LONGEST_REST_S, FIRST_REST_S * 2 ** (self.failures - 1))
        self.resting_until = time.monotonic() + rest

    def on_trial(self, seconds: float) -> None:
        """After a failure one request tries it; the others leave it alone until that one knows."""
        if self.failures:
            self.resting_until = time.monotonic() + seconds

    def worked(self) -> None:
        """Forgives its failures."""
        self.failures = 0
        self.resting_until = 0.0


class Replicas:
    """All replicas of a role, least busy first; those that rest come last."""

    def __init__(self, addresses: Sequence[str], max_message_bytes: int) -> None:
        self._replicas = [
            Replica(address, open_channel(address, max_message_bytes)) for address in addresses
        ]

    def __len__(self) -> int:
        return len(self._replicas)

    def by_preference(self) -> list[Replica]:
        """In the order in which they should be tried."""
        return sorted(self._replicas, key=lambda replica: (replica.resting, replica.sessions))

    async def close(self) -> None:
        """Closes all channels."""
        for replica in self._replicas:
            await replica.channel.close()
