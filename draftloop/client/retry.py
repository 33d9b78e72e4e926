"""When and how often to repeat a failed call, as a value."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    stop_before_delay,
    wait_exponential,
    wait_random,
)
from tenacity.stop import stop_base

from draftloop.errors import DraftloopError, InvalidInput, Overloaded, Unavailable

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A retry policy: up to `attempts` calls in all, as long as they fail with one of `errors`.

    The wait after the n-th failure is initial_backoff_s * backoff_multiplier ** (n - 1), at most
    max_backoff_s, plus a random time of up to initial_backoff_s. It is longer if the server asked
    for that. If a wait would exceed the call's timeout, the error is raised at once instead.
    Raises InvalidInput for values outside their ranges.
    """

    attempts: int = 3
    initial_backoff_s: float = 0.1
    max_backoff_s: float = 5.0
    backoff_multiplier: float = 2.0
    errors: tuple[type[DraftloopError], ...] = (Overloaded, Unavailable)

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidInput("retry.attempts", "must be at least 1", self.attempts)
        for name in ("initial_backoff_s", "max_backoff_s"):
            if not getattr(self, name) >= 0:
                raise InvalidInput(f"retry.{name}", "must not be negative", getattr(self, name))
        if not self.backoff_multiplier >= 1:
            rule = "must be at least 1"
            raise InvalidInput("retry.backoff_multiplier", rule, self.backoff_multiplier)

    async def run(
        self,
        attempt: Callable[[], Awaitable[Answer]],
        within_s: float | None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> Answer:
        """Returns the first answer or raises the last error.

        `within_s` is the time left of the call's timeout, in seconds; None means no limit.
        """
        stop: stop_base = stop_after_attempt(self.attempts)
        if within_s is not None:
            stop = stop | stop_before_delay(within_s)
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(self.errors),
            stop=stop,
            wait=self._wait_s,
            sleep=sleep,
            reraise=True,
        )
        return await retrying(attempt)

    def _wait_s(self, state: RetryCallState) -> float:
        backoff = wait_exponential(
            multiplier=self.initial_backoff_s,
            max=self.max_backoff_s,
            exp_base=self.backoff_multiplier,
        ) + wait_random(0, self.initial_backoff_s)
        error = state.outcome.exception() if state.outcome else None
        return max(backoff(state), getattr(error, "retry_after_s", 0.0))


DEFAULT_RETRY = Retry()
NO_RETRY = Retry(attempts=1)
