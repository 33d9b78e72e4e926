"""A circuit breaker: stops calling a failing service, and probes it after growing pauses."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    """Which calls are let through."""

    CLOSED = "closed"  # all calls
    OPEN = "open"  # none until the pause is over
    HALF_OPEN = "half-open"  # a single probe is under way


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When to open and how long to wait; times in seconds."""

    failures: int = 3  # in a row, until it opens
    first_pause_s: float = 0.1
    max_pause_s: float = 2.0
    growth: float = 2.0  # of the pause, with every probe that fails


class CircuitBreaker:
    """Shared by the threads that call one service.

    Every admitted caller must report `record_success` or `record_failure`. Pauses are shortened by
    a random share of up to one half, so that processes that lost the service together do not probe
    it together.
    """

    def __init__(
        self,
        policy: BreakerPolicy,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._chance = chance
        self._lock = threading.Lock()
        self._state = BreakerState.CLOSED
        self._failures = 0
        self._pause_s = policy.first_pause_s
        self._opens_until = 0.0

    @property
    def state(self) -> BreakerState:
        """The current state."""
        return self._state

    def allows_call(self) -> bool:
        """Whether the caller may call now; after a pause only one caller may."""
        with self._lock:
            if self._state is BreakerState.CLOSED:
                return True
            if self._state is BreakerState.OPEN and self._clock() >= self._opens_until:
                self._state = BreakerState.HALF_OPEN
                return True
            return False

    def wait_s(self) -> float:
        """Seconds to wait before `allows_call` may return True; 0 while the breaker is closed."""
        with self._lock:
            if self._state is BreakerState.CLOSED:
                return 0.0
            if self._state is BreakerState.HALF_OPEN:
                return self._policy.first_pause_s
            return max(self._opens_until - self._clock(), 0.0)

    def record_success(self) -> None:
        """Reports a success, which closes the breaker."""
        with self._lock:
            self._state = BreakerState.CLOSED
            self._failures = 0
            self._pause_s = self._policy.first_pause_s

    def record_failure(self) -> None:
        """Reports a failure; while open, that of a call begun earlier, which changes nothing."""
        with self._lock:
            self._failures += 1
            if self._state is BreakerState.CLOSED and self._failures >= self._policy.failures:
                self._open()
            elif self._state is BreakerState.HALF_OPEN:
                grown = self._pause_s * self._policy.growth
                self._pause_s = min(grown, self._policy.max_pause_s)
                self._open()

    def _open(self) -> None:
        self._state = BreakerState.OPEN
        self._opens_until = self._clock() + self._pause_s * (1 - self._chance() / 2)
