"""The end of what a server does for its clients: who waits is told, not cut off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

from draftloop.errors import Unavailable


class Ending:
    """Ends whatever runs when it comes, and what begins behind it."""

    def __init__(self) -> None:
        self._tells: set[Callable[[], None]] = set()
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether it has come."""
        return self._ended

    @contextlib.contextmanager
    def told(self, tell: Callable[[], None]) -> Iterator[None]:
        """For as long as somebody is served, whom `tell` tells. Raises Unavailable after the end.

        `tell` must be another one for everybody.
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
        """What this task waits for ends by Unavailable at the end, by TimeoutError in that time."""
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
            if ended:  # whoever else calls it off now does so because of that
                raise stopping() from None
            raise

    def end_all(self) -> None:
        """It has come."""
        self._ended = True
        for tell in tuple(self._tells):
            tell()


def stopping() -> Unavailable:
    """What clients are told."""
    return Unavailable("the server stops; send the request again")
