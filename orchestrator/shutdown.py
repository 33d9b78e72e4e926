"""Shutdown of a server's requests: clients get an error instead of a broken connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

from draftloop.errors import Unavailable


class Shutdown:
    """A shutdown that ends running requests and refuses new ones."""

    def __init__(self) -> None:
        self._callbacks: set[Callable[[], None]] = set()
        self._has_begun = False

    @property
    def has_begun(self) -> bool:
        """Whether the shutdown has begun."""
        return self._has_begun

    @contextlib.contextmanager
    def notifying(self, callback: Callable[[], None]) -> Iterator[None]:
        """A context in which a request runs; the shutdown calls its `callback`.

        `callback` must be a distinct object for every request. Raises Unavailable after the
        shutdown.
        """
        if self._has_begun:
            raise shutdown_error()
        self._callbacks.add(callback)
        try:
            yield
        finally:
            self._callbacks.discard(callback)

    @contextlib.asynccontextmanager
    async def within(self, seconds: float | None = None) -> AsyncIterator[None]:
        """Ends the task's waiting with Unavailable at shutdown, or TimeoutError after `seconds`."""
        loop = asyncio.get_running_loop()
        was_shut_down = False
        limit = asyncio.timeout(seconds)

        def interrupt() -> None:
            nonlocal was_shut_down
            was_shut_down = True
            limit.reschedule(loop.time())

        try:
            async with limit:
                with self.notifying(interrupt):
                    yield
        except (TimeoutError, asyncio.CancelledError):
            if was_shut_down:  # any other cancellation now is a consequence of the shutdown
                raise shutdown_error() from None
            raise

    def begin_shutdown(self) -> None:
        """Begins the shutdown."""
        self._has_begun = True
        for callback in tuple(self._callbacks):
            callback()


def shutdown_error() -> Unavailable:
    """The error that clients get at shutdown."""
    return Unavailable("the server stops; send the request again")
