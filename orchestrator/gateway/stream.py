"""Answers that end when the client disconnects: nothing is generated that nobody reads."""

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
ErrorEvent = Callable[[Exception], bytes]  # what to say of an error that ends a stream

STALL_TIMEOUT_S = 60.0  # a client whose buffers have been full for so long counts as gone
# Between comments before the first event: clients wait for an answer's head, and after that for
# more, often 300 s each.
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

    If the first event takes longer than `KEEP_ALIVE_INTERVAL_S`, the stream begins with comments as
    signs of life, and a later error is sent as an event.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], error_event: ErrorEvent) -> None:
        # Asks proxies not to buffer events, which would undo the streaming.
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._error_event = error_event

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
            await _send_body(send, first)
            try:
                async for data in events:
                    await _send_body(send, data)
            except ClientGone:
                raise
            except Exception as error:
                if not isinstance(error, DraftloopError):
                    log.error("unforeseen error", exc_info=error)
                await _send_body(send, self._error_event(error))
        await send({"type": "http.response.body", "body": b""})


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


async def _send_body(send: Send, data: bytes) -> None:
    """Sends a piece. Raises ClientGone if the client has stopped reading."""
    try:
        async with asyncio.timeout(STALL_TIMEOUT_S):
            await send({"type": "http.response.body", "body": data, "more_body": True})
    except TimeoutError:
        raise ClientGone from None
