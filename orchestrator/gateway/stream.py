"""Answers that end when the client does: nothing is generated for nobody."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from draftloop import logs
from draftloop.errors import DraftloopError
from orchestrator.gateway.errors import ClientGone

Result = TypeVar("Result")
LastWords = Callable[[Exception], bytes]  # what to say of an error that ends a stream

STALLED_S = 60.0  # a client whose buffers have been full for so long has gone, or may as well
QUIET_S = 15.0  # clients wait for an answer's head, and behind it for more, often 300 s each
WAITING = b": waiting\n\n"  # a comment, of which nobody makes an event

log = logs.get(__name__)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` returns or raises; it is cancelled, and ClientGone raised, if the client leaves.

    For a request whose body has been read: what `receive` then says is that the client has left.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait({working, leaving})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events. An error before the first one has a status of its own, unless that was
    long in coming: clients then hear that somebody is there.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], last_words: LastWords) -> None:
        # A proxy that gathers the events would undo the streaming.
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._last_words = last_words

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends what there is until it ends or the client leaves."""
        with contextlib.suppress(ClientGone):
            await while_connected(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        async with (
            contextlib.aclosing(self._events) as work,
            contextlib.aclosing(_heard(work)) as events,
        ):
            first = await anext(events)
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            await _send_body(send, first)
            try:
                async for data in events:
                    await _send_body(send, data)
            except ClientGone:
                raise
            except Exception as error:
                if not isinstance(error, DraftloopError):
                    log.error("unforeseen error", exc_info=error)
                await _send_body(send, self._last_words(error))
        await send({"type": "http.response.body", "body": b""})


async def _heard(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The events, and signs of life for as long as the first one is not there."""
    first = asyncio.ensure_future(anext(events))
    try:
        while not (await asyncio.wait({first}, timeout=QUIET_S))[0]:
            yield WAITING
        yield first.result()
    finally:
        first.cancel()
        await asyncio.wait({first})
    async for data in events:
        yield data


async def _send_body(send: Send, data: bytes) -> None:
    """Raises ClientGone where the client does not read any more."""
    try:
        async with asyncio.timeout(STALLED_S):
            await send({"type": "http.response.body", "body": data, "more_body": True})
    except TimeoutError:
        raise ClientGone from None
