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
    """The pieces of one generation, in order, for one reader; `AsyncClient.stream` creates it.

    The request is sent when the first piece is read. Until that piece has arrived, the request is
    repeated as the retry policy says; after that it is not, since its tokens may have been used.
    Leaving an `async for` over the stream, or an `async with`, cancels the rest of the generation.
    Callers that use only `read` or `anext` call `cancel` themselves.
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
        """How the generation ended and what it cost.

        Raises DraftloopError if the stream was not read to its end.
        """
        if self._summary is None:
            raise DraftloopError("the stream was not read to its end: there is no summary")
        return self._summary

    def cancel(self) -> None:
        """Tells the server to stop; no more pieces follow.

        Call it on the event loop's own thread.
        """
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()

    async def read(self) -> Piece | None:
        """The next piece; None after the last one. Raises errors of `draftloop.errors`."""
        if self._summary is not None or self._cancelled.is_set():
            return None
        try:
            received = await self._received()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._cancelled.is_set() and not (task and task.cancelling()):
                return None
            self.cancel()  # the reading task itself was cancelled: nobody reads on
            raise
        except DraftloopError:
            if self._cancelled.is_set():  # for instance, the client was closed after `cancel`
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
        """Waits between two attempts; `cancel` and closing the client end the wait early."""
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
        # Each loop gets its own generator, which is closed when the loop is left.
        try:
            while (piece := await self.read()) is not None:
                yield piece
        finally:
            self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
