"""With whom a verification shares its forward, and who waits for it: what a node costs others."""

from __future__ import annotations

import statistics
from collections import deque

from draftloop.pace import Pace
from draftloop.tree import ServiceTimings

# Verifications, of all requests, whose median is how it is now: a prompt in between says little.
LATEST = 16
# How long prompts are remembered, and the most of all time that they are taken to need.
PROMPTS_MEMORY, MOST_PROMPTS = 0.98, 0.95


class VerifierLoad:
    """The verifier's sessions as all requests of late have seen them.

    A row that a forward has more keeps everybody waiting who is in it or behind it, so its time is
    worth what all of them bring in (decision 14). Alone that is one session.
    Those whose prompts are run bring in nothing yet, and their rows are none of a round's.
    """

    def __init__(self) -> None:
        self._shared: deque[tuple[int, int]] = deque(maxlen=LATEST)
        self.sessions = 1.0
        self.others_rows = 0
        self._prompts = Pace(PROMPTS_MEMORY)  # what they took, by what verifications took

    def observe(self, rows: int, timings: ServiceTimings) -> None:
        """Takes in a verification of so many rows. A service that does not say is nobody else's."""
        others = max(0, timings.round_rows - rows)
        sessions = max(1, timings.batch_size - timings.prompts) + timings.waiting
        self._prompts.observe(timings.prompts_ns, timings.service_ns)
        self._shared.append((others, sessions))
        if sessions == self.sessions == 1:
            return  # one more of what most are like
        self.others_rows = round(statistics.median(others for others, _ in self._shared))
        self.sessions = statistics.median(sessions for _, sessions in self._shared)

    @property
    def prompts_share(self) -> float:
        """Of a verification's time, that which others' prompts take, however small the draft."""
        return min(self._prompts.rate, MOST_PROMPTS)

    @property
    def is_shared(self) -> bool:
        """Whether others use the verifier at the same time."""
        return self.sessions > 1
