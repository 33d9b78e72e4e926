"""The deadline of a request: after it, nobody waits for the answer any more."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self

from draftloop.errors import DeadlineExceeded

# gRPC rounds a call's timeout up on the wire, by up to this share of it, and clocks differ by up to
# this time. A client that gives up exactly at its deadline therefore does so a little before it has
# passed here.
ROUNDED_UP, CLOCKS_APART_S = 0.01, 0.01
LONGEST_S = 1e9  # thirty years: gRPC cannot represent much more, and nobody waits that long


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock, in seconds; None means never.

    A client that knows the same deadline may give up as much as `slack_s` earlier.
    """

    at: float | None = None
    slack_s: float = 0.0

    @classmethod
    def after(cls, seconds: float | None) -> Self:
        """The deadline `seconds` from now; never, if `seconds` is None or more than LONGEST_S."""
        if seconds is None or seconds > LONGEST_S:
            return cls()
        return cls(time.monotonic() + seconds, CLOCKS_APART_S + ROUNDED_UP * seconds)

    @property
    def reached(self) -> bool:
        """Whether a call that was given up just now was given up because of this deadline."""
        return self.at is not None and time.monotonic() >= self.at - self.slack_s

    def remaining(self) -> float | None:
        """Seconds left; None if there is no limit. Raises DeadlineExceeded once it has passed."""
        if self.at is None:
            return None
        left = self.at - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded
        return left

    @contextlib.asynccontextmanager
    async def enforced(self) -> AsyncIterator[None]:
        """Cancels the block when the deadline passes, and then raises DeadlineExceeded."""
        bound = asyncio.timeout(self.remaining())
        try:
            async with bound:
                yield
        except TimeoutError:
            if not bound.expired():  # another timeout's error
                raise
            raise DeadlineExceeded from None
