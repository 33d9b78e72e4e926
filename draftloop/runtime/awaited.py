"""A future that an event loop awaits and another thread completes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class Outcome(Protocol):
    """The result of a task, as the engine's thread sees it: a `Future`, or an `Awaited`."""

    def cancelled(self) -> bool:
        """Whether the caller no longer waits."""

    def set_result(self, value: Any, /) -> None:
        """Completes it with a value."""

    def set_exception(self, error: Exception, /) -> None:
        """Completes it with an error."""


class Awaited(Generic[T]):
    """The engine's `Outcome` for an event loop.

    Cheaper than `asyncio.wrap_future`, which takes two futures and their locks. Created on the
    loop's thread, which alone may await or cancel it; completed from any thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[T] = self._loop.create_future()

    def __await__(self) -> Generator[Any, None, T]:
        return self._future.__await__()

    def cancelled(self) -> bool:
        return self._future.cancelled()

    def cancel(self) -> None:
        """Stops waiting; ignores the result or error if there is one already."""
        if not self._future.cancel() and not self._future.cancelled():
            self._future.exception()  # else asyncio logs that it was never retrieved

    def set_result(self, value: T) -> None:
        self._finish(self._future.set_result, value)

    def set_exception(self, error: BaseException) -> None:
        self._finish(self._future.set_exception, error)

    def _finish(self, method: Callable[[Any], None], outcome: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            self._loop.call_soon_threadsafe(self._settle, method, outcome)

    def _settle(self, method: Callable[[Any], None], outcome: Any) -> None:
        if not self._future.done():
            method(outcome)
