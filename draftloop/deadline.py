"""The moment after which nobody waits for a request's answer any more."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self

from draftloop.errors import DeadlineExceeded

LONGEST_S = 1e9  # thirty years: gRPC cannot count much further, and nobody waits


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the monotonic clock, in seconds; None is never."""

    at: float | None = None

    @classmethod
    def after(cls, seconds: float | None) -> Self:
        """So many seconds from now; never, where that is longer than anybody waits."""
        return cls(None if seconds is None or seconds > LONGEST_S else time.monotonic() + seconds)

    def remaining(self) -> float | None:
        """Seconds left; None where there is no limit. Raises DeadlineExceeded once it is past."""
        if self.at is None:
            return None
        left = self.at - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded
        return left
