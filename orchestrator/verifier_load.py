"""Which other sessions share a verification's forward or wait for it."""

from __future__ import annotations

import statistics
from collections import deque

from draftloop.pace import Pace
from draftloop.tree import ServiceTimings

# Latest verifications, of all requests. Their median is the present load, so that a single prompt
# in between hardly matters.
LATEST = 16
# Decay of the prompts' share of time, and the maximum share that is assumed.
PROMPTS_MEMORY, MAX_PROMPT_SHARE = 0.98, 0.95


class VerifierLoad:
    """The verifier's load, as recent verifications of all requests have reported it.

    One more row in a forward delays all sessions that are in the forward or wait for the next one,
    so its time is worth what all of them bring in (decision 14). `sessions` is their number: 1 for
    a session alone. `other_rows` is the number of rows of other sessions in the same forward.
    Sessions whose prompts are being prefilled are not counted: they bring in nothing yet, and their
    rows belong to no round.
    """

    def __init__(self) -> None:
        self._shared: deque[tuple[int, int]] = deque(maxlen=LATEST)
        self.sessions = 1.0
        self.other_rows = 0
        self._prompts = Pace(PROMPTS_MEMORY)  # time of prompts per time of verifications

    def observe(self, rows: int, timings: ServiceTimings) -> None:
        """Records a verification with `rows` own rows.

        A service that does not report its load counts as not shared.
        """
        others = max(0, timings.round_rows - rows)
        sessions = max(1, timings.batch_size - timings.prompts) + timings.waiting
        self._prompts.observe(timings.prompts_ns, timings.service_ns)
        self._shared.append((others, sessions))
        if sessions == self.sessions == 1:
            return  # nothing changes: this one is like the median
        self.other_rows = round(statistics.median(others for others, _ in self._shared))
        self.sessions = statistics.median(sessions for _, sessions in self._shared)

    @property
    def prompt_share(self) -> float:
        """Share of verification time spent on other sessions' prompts, whatever is drafted."""
        return min(self._prompts.rate, MAX_PROMPT_SHARE)

    @property
    def is_shared(self) -> bool:
        """Whether other sessions use the verifier at the same time."""
        return self.sessions > 1
