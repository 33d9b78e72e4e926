"""What an event loop awaits and another thread brings to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class Outcome(Protocol):
    """Who waits for a task, in its thread's view: a `Future`, or an event loop's `Awaited`."""

    def cancelled(self) -> bool:
        """Whether nobody waits any more."""

    def set_result(self, value: Any, /) -> None:
        """Ends it well."""

    def set_exception(self, error: Exception, /) -> None:
        """Ends it badly."""


class Awaited(Generic[T]):
    """The engine's `Outcome` for an event loop.

    `asyncio.wrap_future` with one future instead of two and their locks. Made on the loop's thread,
    which alone may await or cancel it; ended from any.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[T] = self._loop.create_future()

    def __await__(self) -> Generator[Any, None, T]:
        return self._future.__await__()

    def cancelled(self) -> bool:
        return self._future.cancelled()

    def cancel(self) -> None:
        """Nobody waits any more; how it ended, if it has, is nobody's business either."""
        if not self._future.cancel() and not self._future.cancelled():
            self._future.exception()  # or asyncio complains that it was never looked at

    def set_result(self, value: T) -> None:
        self._end(self._future.set_result, value)

    def set_exception(self, error: BaseException) -> None:
        self._end(self._future.set_exception, error)

    def _end(self, how: Callable[[Any], None], outcome: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._settle, how, outcome)

    def _settle(self, how: Callable[[Any], None], outcome: Any) -> None:
        if not self._future.done():
            how(outcome)
