"""The moment after which nobody waits for a request's answer any more."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self

from draftloop.errors import DeadlineExceeded

# A call's time is rounded up on its way, by as large a share of it, and clocks are that far apart:
# who gives up in time does so a little before the time is over here.
ROUNDED_UP, CLOCKS_APART_S = 0.01, 0.01
LONGEST_S = 1e9  # thirty years: gRPC cannot count much further, and nobody waits


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the monotonic clock, in seconds; None is never.

    Where the client knows it too, it may give up up to `slack_s` before.
    """

    at: float | None = None
    slack_s: float = 0.0

    @classmethod
    def after(cls, seconds: float | None) -> Self:
        """So many seconds from now; never, where that is longer than anybody waits."""
        if seconds is None or seconds > LONGEST_S:
            return cls()
        return cls(time.monotonic() + seconds, CLOCKS_APART_S + ROUNDED_UP * seconds)

    @property
    def reached(self) -> bool:
        """Whether who gives up now does so because of it."""
        return self.at is not None and time.monotonic() >= self.at - self.slack_s

    def remaining(self) -> float | None:
        """Seconds left; None where there is no limit. Raises DeadlineExceeded once it is past."""
        if self.at is None:
            return None
        left = self.at - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded
        return left

    @contextlib.asynccontextmanager
    async def bounding(self) -> AsyncIterator[None]:
        """Calls off what runs within once it is past. Raises DeadlineExceeded then."""
        bound = asyncio.timeout(self.remaining())
        try:
            async with bound:
                yield
        except TimeoutError:
            if not bound.expired():  # it is another's
                raise
            raise DeadlineExceeded from None
