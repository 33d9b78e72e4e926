"""Around every request: a limit for its body, and an id that its answer names."""

from __future__ import annotations

import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.gateway.answers import refusal
from orchestrator.gateway.errors import too_large

REQUEST_ID_HEADER = "x-request-id"
MOST_ID_LETTERS = 128


class Envelope:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, unless its body is announced as too large."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self._max_body_bytes:
            answer = refusal(too_large(self._max_body_bytes))
            answer.headers["connection"] = "close"  # the rest of the body is not read
            await answer(scope, receive, named)
            return
        await self._app(scope, self._limited(receive), named)

    def _limited(self, receive: Receive) -> Receive:
        """A body without an announced length is counted as it comes."""
        left = self._max_body_bytes

        async def counted() -> Message:
            nonlocal left
            message = await receive()
            if message["type"] == "http.request":
                left -= len(message.get("body", b""))
                if left < 0:
                    raise _TooLarge(too_large(self._max_body_bytes).message)
            return message

        return counted


class _TooLarge(HTTPException):
    """Of the one kind that the framework passes on from where it reads a body."""

    def __init__(self, message: str) -> None:
        super().__init__(413, message)


def _request_id(headers: Headers) -> str:
    """The client's own, where it is fit to be printed; otherwise a new one."""
    said = headers.get(REQUEST_ID_HEADER, "")
    usable = 0 < len(said) <= MOST_ID_LETTERS and said.isascii() and said.isprintable()
    return said if usable else uuid.uuid4().hex
