"""Shutdown of a server's requests: clients get an error instead of a broken connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

from draftloop.errors import Unavailable


class Ending:
    """A shutdown that ends running requests and refuses new ones."""

    def __init__(self) -> None:
        self._tells: set[Callable[[], None]] = set()
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the shutdown has begun."""
        return self._ended

    @contextlib.contextmanager
    def told(self, tell: Callable[[], None]) -> Iterator[None]:
        """A context in which a request runs; the shutdown calls its `tell`.

        `tell` must be a distinct object for every request. Raises Unavailable after the shutdown.
        """
        if self._ended:
            raise stopping()
        self._tells.add(tell)
        try:
            yield
        finally:
            self._tells.discard(tell)

    @contextlib.asynccontextmanager
    async def within(self, seconds: float | None = None) -> AsyncIterator[None]:
        """Ends the task's waiting with Unavailable at shutdown, or TimeoutError after `seconds`."""
        loop = asyncio.get_running_loop()
        ended = False
        limit = asyncio.timeout(seconds)

        def tell() -> None:
            nonlocal ended
            ended = True
            limit.reschedule(loop.time())

        try:
            async with limit:
                with self.told(tell):
                    yield
        except (TimeoutError, asyncio.CancelledError):
            if ended:  # any other cancellation now is a consequence of the shutdown
                raise stopping() from None
            raise

    def end_all(self) -> None:
        """Begins the shutdown."""
        self._ended = True
        for tell in tuple(self._tells):
            tell()


def stopping() -> Unavailable:
    """The error that clients get at shutdown."""
    return Unavailable("the server stops; send the request again")
