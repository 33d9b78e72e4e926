"""With whom a verification shares its forward, and who waits for it: what a node costs others."""

from __future__ import annotations

import statistics
from collections import deque

from draftloop.tree import ServiceTimings

# Verifications, of all requests, whose median is how it is now: a prompt in between says little.
LATEST = 16


class VerifierLoad:
    """The verifier's sessions as all requests of late have seen them.

    A row that a forward has more keeps everybody waiting who is in it or behind it, so its time is
    worth what all of them bring in (ALGORITHMS, section 6, "Load"). Alone that is one session.
    """

    def __init__(self) -> None:
        self._shared: deque[tuple[int, int]] = deque(maxlen=LATEST)
        self.sessions = 1.0
        self.others_rows = 0

    def observe(self, rows: int, timings: ServiceTimings) -> None:
        """Takes in a verification of so many rows. A service that does not say is nobody else's."""
        others = max(0, timings.batch_rows - timings.prompt_rows - rows)
        sessions = max(1, timings.batch_size) + timings.waiting
        self._shared.append((others, sessions))
        if sessions == self.sessions == 1:
            return  # one more of what most are like
        self.others_rows = round(statistics.median(others for others, _ in self._shared))
        self.sessions = statistics.median(sessions for _, sessions in self._shared)

    @property
    def is_shared(self) -> bool:
        """Whether others use the verifier at the same time."""
        return self.sessions > 1
