"""Middleware around every request: access, deadline, body limits, request id, count of answers."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftloop import logs
from draftloop.deadline import Deadline
from draftloop.errors import (
    DeadlineExceeded,
    Forbidden,
    InvalidInput,
    Unauthenticated,
    Unavailable,
)
from draftloop.request import is_request_id
from orchestrator.gateway.answers import JsonAnswer, is_anthropic_path, refusal
from orchestrator.gateway.errors import Problem, problem, too_large, too_slow, unsupported_encoding
from orchestrator.metrics import HTTP_REQUESTS, count_refused
from orchestrator.shutdown import Shutdown, shutdown_error

REQUEST_ID_HEADER = "x-request-id"
ANTHROPICS_REQUEST_ID_HEADER = "request-id"
# Paths that need no key: the server's state and API, and the files of a page that sends a key.
PUBLIC_PATHS = ("/health", "/ready", "/version", "/metrics", "/openapi.json", "/favicon.ico", "/")
PUBLIC_FOLDER = "/playground"
UNKNOWN_ROUTE = "unknown"  # route of a request that matches none, or that was refused before
# Time limits for each piece of a body: usually, and once the server stops.
BODY_PIECE_TIMEOUT_S, STOPPED_PIECE_TIMEOUT_S = 60.0, 1.0
# Limits for reading the rest of a refused body: time for each piece, time for all, bytes.
DISCARD_PIECE_TIMEOUT_S, DISCARD_TIMEOUT_S, MAX_DISCARD_BYTES = 5.0, 30.0, 64 << 20
FAILED, CLIENT_CLOSED = 500, 499  # 499 is nginx's; no client receives it


class Envelope:
    """ASGI middleware. The functions get a request's headers.

    `require_caller` raises Unauthenticated if a key is needed and none that is known was sent.
    `require_host` raises Forbidden if the request came under a name that is not this server's.
    `deadline` returns the deadline of a request that arrives now, or raises InvalidInput.
    `shutdown` ends the reading of bodies when the server stops.
    """

    def __init__(
        self, app: ASGIApp, *, max_body_bytes: int,
        require_host: Callable[[Mapping[str, str]], None],
        require_caller: Callable[[Mapping[str, str]], None],
        deadline: Callable[[Mapping[str, str]], Deadline],
        shutdown: Shutdown,
    ) -> None:  # fmt: skip
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._require_host = require_host
        self._require_caller = require_caller
        self._deadline = deadline
        self._shutdown = shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on if it is admitted; otherwise answers with the refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        logs.bind_http_request(request_id)
        status = CLIENT_CLOSED  # counted if the client leaves before an answer
        body, closes_connection = _Body(receive), False

        async def send_with_id(message: Message) -> None:
            nonlocal status, closes_connection
            if message["type"] == "http.response.start":
                status, response_headers = message["status"], MutableHeaders(scope=message)
                response_headers[REQUEST_ID_HEADER] = request_id
                if is_anthropic_path(scope["path"]):
                    response_headers[ANTHROPICS_REQUEST_ID_HEADER] = request_id
                closes_connection = response_headers.get("connection") == "close"
            elif closes_connection and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await self._discard_body(body)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        try:
            try:
                deadline = self._check_admission(scope, headers)
            except BodyRefused as error:
                await with_connection_close(refusal(error.problem, scope["path"]))(
                    scope, body.receive, send_with_id
                )
            else:
                scope.setdefault("state", {})["deadline"] = deadline
                await self._app(scope, self._limit_body(body, deadline), send_with_id)
        except Exception:
            status = FAILED
            raise
        finally:
            route = getattr(scope.get("route"), "path", UNKNOWN_ROUTE)
            HTTP_REQUESTS.labels(route, str(status)).inc()

    def _check_admission(self, scope: Scope, headers: Headers) -> Deadline:
        """The request's deadline. Raises BodyRefused if its body is not to be read."""
        path, deadline = scope["path"], Deadline()
        try:
            self._require_host(headers)
            if path not in PUBLIC_PATHS and not f"{path}/".startswith(f"{PUBLIC_FOLDER}/"):
                self._require_caller(headers)
                deadline = self._deadline(headers)
        except (Forbidden, Unauthenticated, InvalidInput) as error:
            raise BodyRefused(problem(error)) from None
        encoding = headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise BodyRefused(unsupported_encoding(encoding))
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self._max_body_bytes:
            raise BodyRefused(too_large(self._max_body_bytes))
        return deadline

    def _limit_body(self, body: _Body, deadline: Deadline) -> Receive:
        """Receives the body within limits of time and of bytes.

        Bytes are counted as they come, for bodies without an announced length.
        """
        bytes_left = self._max_body_bytes

        async def receive_counted() -> Message:
            nonlocal bytes_left
            # after the body, the next message is the client's disconnect: no time limit
            message = await (
                body.receive() if body.is_complete else self._receive_in_time(body, deadline)
            )
            if message["type"] == "http.request":
                bytes_left -= len(message.get("body", b""))
                if bytes_left < 0:
                    raise BodyRefused(too_large(self._max_body_bytes))
            return message

        return receive_counted

    async def _discard_body(self, body: _Body) -> None:
        """Reads and drops the rest of a refused body, within limits.

        Many clients send the whole body before they read an answer, and would find a closed
        connection instead of it.
        """
        if self._shutdown.has_begun:
            piece_timeout_s, timeout_s = STOPPED_PIECE_TIMEOUT_S, STOPPED_PIECE_TIMEOUT_S
        else:
            piece_timeout_s, timeout_s = DISCARD_PIECE_TIMEOUT_S, DISCARD_TIMEOUT_S
        bytes_left = MAX_DISCARD_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while bytes_left > 0 and not body.is_complete:
                    async with asyncio.timeout(piece_timeout_s):
                        bytes_left -= len((await body.receive()).get("body", b""))

    async def _receive_in_time(self, body: _Body, deadline: Deadline) -> Message:
        """The next message, within the deadline and the time for a piece. Raises BodyRefused.

        Once the server has stopped reading, a body that is already there is still read
        (`STOPPED_PIECE_TIMEOUT_S`), so that the request gets its own refusal.
        """
        is_stopped = self._shutdown.has_begun
        try:
            limit = (
                asyncio.timeout(STOPPED_PIECE_TIMEOUT_S)
                if is_stopped
                else self._shutdown.within(BODY_PIECE_TIMEOUT_S)
            )
            async with deadline.enforced(), limit:
                return await body.receive()
        except TimeoutError:
            body.is_complete = True
            raise BodyRefused(
                problem(shutdown_error()) if is_stopped else too_slow(BODY_PIECE_TIMEOUT_S)
            ) from None
        except Unavailable as error:
            raise BodyRefused(problem(error)) from None
        except DeadlineExceeded as error:
            count_refused(error)
            raise BodyRefused(problem(error)) from None


def with_connection_close(response: JsonAnswer) -> JsonAnswer:
    """Marks the answer as the last one on its connection: the rest of the body is not used."""
    response.headers["connection"] = "close"
    return response


def deadline_of(request: Request) -> Deadline:
    """The deadline of a request that passed `Envelope`, counted from when its head arrived."""
    deadline: Deadline = request.state.deadline
    return deadline


class _Body:
    """The messages after a request's head. `is_complete`: no more of its body is expected."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_complete = False

    async def receive(self) -> Message:
        """The next message."""
        message = await self._receive()
        self.is_complete = not message.get("more_body", False)
        return message


class BodyRefused(HTTPException):
    """The request is refused before or while its body is read.

    An HTTPException, since the framework passes on no other kind from where it reads a body.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.status, problem.message)
        self.problem = problem


def _request_id(headers: Headers) -> str:
    """The client's own request id if it is valid, otherwise a new one."""
    request_id = headers.get(REQUEST_ID_HEADER, "")
    return request_id if is_request_id(request_id) else uuid.uuid4().hex
