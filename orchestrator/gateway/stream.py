"""Answers that end when the client disconnects: nothing is generated that nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from draftloop import logs
from draftloop.errors import DraftloopError
from orchestrator.gateway.errors import ClientGone

Result = TypeVar("Result")
ErrorEvent = Callable[[Exception], bytes]  # what to say of an error that ends a stream

STALL_TIMEOUT_S = 60.0  # a client whose buffers have been full for so long counts as gone
# Longest time without an event or a comment. Clients wait for an answer's head, and after that for
# more, often 300 s each; proxies in between often wait for 60 s.
KEEP_ALIVE_INTERVAL_S = 15.0
KEEP_ALIVE_COMMENT = b": waiting\n\n"  # a comment, which clients ignore

log = logs.get(__name__)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Returns or raises what `work` does.

    If the client disconnects first, cancels it and raises ClientGone. The request's body must have
    been read: the next message of `receive` is then the disconnect.
    """
    work_task = asyncio.ensure_future(work)
    disconnect_task = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({work_task, disconnect_task}, return_when=asyncio.FIRST_COMPLETED)
        if not work_task.done():
            raise ClientGone
        return work_task.result()
    finally:
        work_task.cancel()
        disconnect_task.cancel()
        await asyncio.wait({work_task, disconnect_task})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events. An error before the first event is answered with its own status.

    After every `KEEP_ALIVE_INTERVAL_S` without an event, a comment is sent as a sign of life: while
    the first event is waited for, or reasoning that is not shown. If the stream begins with a
    comment, a later error is sent as an event.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], error_event: ErrorEvent) -> None:
        # Asks proxies not to buffer events, which would undo the streaming.
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._error_event = error_event
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until they end or the client disconnects."""
        with contextlib.suppress(ClientGone):
            await while_connected(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        async with (
            contextlib.aclosing(self._events) as work,
            contextlib.aclosing(_with_keep_alive(work)) as events,
        ):
            first = await anext(events)
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            await self._send_data(send, first)
            keep_alive = asyncio.ensure_future(self._keep_alive(send))
            try:
                async for data in events:
                    await self._send_data(send, data)
            except ClientGone:
                raise
            except Exception as error:
                if not isinstance(error, DraftloopError):
                    log.error("unforeseen error", exc_info=error)
                await self._send_data(send, self._error_event(error))
            finally:
                keep_alive.cancel()
                await asyncio.wait({keep_alive})
        await send({"type": "http.response.body", "body": b""})

    async def _send_data(self, send: Send, data: bytes) -> None:
        """Sends a piece. Raises ClientGone if the client has stopped reading."""
        self._sent_at = time.monotonic()
        try:
            async with asyncio.timeout(STALL_TIMEOUT_S):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            raise ClientGone from None

    async def _keep_alive(self, send: Send) -> None:
        """Sends a comment whenever nothing was sent for `KEEP_ALIVE_INTERVAL_S`."""
        with contextlib.suppress(ClientGone):  # the next event will show it, too
            while True:
                await asyncio.sleep(self._sent_at + KEEP_ALIVE_INTERVAL_S - time.monotonic())
                if time.monotonic() - self._sent_at >= KEEP_ALIVE_INTERVAL_S:
                    await self._send_data(send, KEEP_ALIVE_COMMENT)


async def _with_keep_alive(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The events, after a comment every `KEEP_ALIVE_INTERVAL_S` until the first one is there."""
    first = asyncio.ensure_future(anext(events))
    try:
        while not (await asyncio.wait({first}, timeout=KEEP_ALIVE_INTERVAL_S))[0]:
            yield KEEP_ALIVE_COMMENT
        yield first.result()
    finally:
        first.cancel()
        await asyncio.wait({first})
    async for data in events:
        yield data
