"""A time limit that other signs of life extend."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Self


def no_heartbeat() -> float:
    """For a `Watchdog` that has no other sign of life."""
    return math.inf


class Watchdog:
    """`asyncio.timeout(seconds)` that only fires after as many seconds without a sign of life.

    `silence_s()`: seconds since the last sign of life.
    """

    def __init__(self, seconds: float, silence_s: Callable[[], float] = no_heartbeat) -> None:
        self._seconds = seconds
        self._silence_s = silence_s
        self._limit = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._check)

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _check(self) -> None:
        left = self._seconds - self._silence_s()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check)
        else:
            self._limit.reschedule(self._loop.time())
