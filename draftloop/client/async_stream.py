"""A generation that arrives in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self

from draftloop.client.retry import Retry
from draftloop.completion import Piece, Summary
from draftloop.deadline import Deadline
from draftloop.errors import DraftloopError
from draftloop.rpc.generation_client import PieceCall


class AsyncStream:
    """The pieces of one generation, in order, for one reader; `AsyncClient.stream` makes it.

    Nothing is sent before the first piece is asked for. Until that piece has come the request is
    made again as the retry policy says; after it never, since its tokens may have been used.
    Leaving an `async for` over it, or an `async with`, cancels what is left; whoever uses `read` or
    `anext` alone cancels by `cancel`.
    """

    def __init__(
        self,
        begin: Callable[[], PieceCall],
        retry: Retry,
        deadline: Deadline,
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._begin = begin
        self._retry = retry
        self._deadline = deadline
        self._pause = pause
        self._call: PieceCall | None = None
        self._begun = False
        self._cancelled = asyncio.Event()
        self._summary: Summary | None = None

    @property
    def summary(self) -> Summary:
        """How it ended and what it cost. Raises DraftloopError while it has not ended by itself."""
        if self._summary is None:
            raise DraftloopError("the stream was not read to its end: there is no summary")
        return self._summary

    def cancel(self) -> None:
        """Tells the server to stop: no piece follows. Call it on the event loop's own thread."""
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()

    async def read(self) -> Piece | None:
        """The next piece, None after the last. Raises errors of `draftloop.errors`."""
        if self._summary is not None or self._cancelled.is_set():
            return None
        try:
            received = await self._received()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._cancelled.is_set() and not (task and task.cancelling()):
                return None
            self.cancel()  # who waits was cancelled: nobody reads on
            raise
        except DraftloopError:
            if self._cancelled.is_set():  # and the client closed behind that, say
                return None
            raise
        if isinstance(received, Summary):
            self._summary = received
            return None
        return received

    async def _received(self) -> Piece | Summary:
        if self._begun and self._call is not None:
            return await self._call.read()
        self._begun = True
        return await self._retry.run(self._first, self._deadline.remaining(), self._sleep)

    async def _first(self) -> Piece | Summary:
        if self._cancelled.is_set():
            raise asyncio.CancelledError
        self._call = self._begin()
        return await self._call.read()

    async def _sleep(self, seconds: float) -> None:
        """Between two attempts; `cancel` ends it, and so does what ends the client's pause."""
        ends = [
            asyncio.ensure_future(end) for end in (self._cancelled.wait(), self._pause(seconds))
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    async def __anext__(self) -> Piece:
        piece = await self.read()
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def __aiter__(self) -> AsyncIterator[Piece]:
        # A generator of its own for every loop: when the loop is left, it is closed.
        try:
            while (piece := await self.read()) is not None:
                yield piece
        finally:
            self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
