"""A limit on requests per minute; those beyond it are told when to retry."""

from __future__ import annotations

import time
from collections.abc import Callable

from draftloop.errors import Overloaded

MINUTE_S = 60.0


class RateLimit:
    """A token bucket of size `per_minute`, refilled evenly: a minute's worth may come at once."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._left = float(per_minute)
        self._filled_at = clock()

    def take(self, count: int = 1) -> None:
        """Counts requests. Raises Overloaded, with the time to wait, if they exceed the rate."""
        now = self._clock()
        refill = (now - self._filled_at) * self._per_minute / MINUTE_S
        self._left = min(self._per_minute, self._left + refill)
        self._filled_at = now
        if self._left < count:
            wait = (count - self._left) * MINUTE_S / self._per_minute
            raise Overloaded(
                f"api key: at most {self._per_minute} requests a minute", round(wait, 3)
            )
        self._left -= count
