"""Around every request: who may ask, until when, a limit for its body, an id, and a count of its
answers."""

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
from orchestrator.ending import Ending, stopping
from orchestrator.gateway.answers import JsonAnswer, is_anthropics, refusal
from orchestrator.gateway.errors import Problem, encoded, problem, too_large, too_slow
from orchestrator.metrics import HTTP_REQUESTS, count_refused

REQUEST_ID_HEADER = "x-request-id"
ANTHROPICS_REQUEST_ID_HEADER = "request-id"
# What everybody may ask: how the server is, what it serves; files of a page that asks with a key.
OPEN = ("/health", "/ready", "/version", "/metrics", "/openapi.json", "/favicon.ico", "/")
OPEN_FOLDER = "/playground"
UNKNOWN = "unknown"  # route of a request that has none, or that was not looked for
BODY_S, REST_S = 60.0, 1.0  # for each piece of a body, and where the server stops
# For a body that was refused: each piece of it, all of it, and its bytes.
UNWANTED_PIECE_S, UNWANTED_S, UNWANTED_BYTES = 5.0, 30.0, 64 << 20
FAILED, CLIENT_CLOSED = 500, 499  # nginx's number; nobody reads it


class Envelope:
    """ASGI middleware. `require_caller` raises Unauthenticated for headers of a stranger.

    `require_host` raises Forbidden for those of a request that is meant for somebody else.
    `deadline` is that of a request which comes now; it raises InvalidInput. `reading` ends the
    reading of bodies.
    """

    def __init__(
        self, app: ASGIApp, *, max_body_bytes: int,
        require_host: Callable[[Mapping[str, str]], None],
        require_caller: Callable[[Mapping[str, str]], None],
        deadline: Callable[[Mapping[str, str]], Deadline],
        reading: Ending,
    ) -> None:  # fmt: skip
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._require_host = require_host
        self._require_caller = require_caller
        self._deadline = deadline
        self._reading = reading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, unless it is a stranger's, or announced as too large."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        logs.bind_http_request(request_id)
        status = CLIENT_CLOSED  # where there is nobody to answer
        body, closes = _Body(receive), False

        async def named(message: Message) -> None:
            nonlocal status, closes
            if message["type"] == "http.response.start":
                status, told = message["status"], MutableHeaders(scope=message)
                told[REQUEST_ID_HEADER] = request_id
                if is_anthropics(scope["path"]):
                    told[ANTHROPICS_REQUEST_ID_HEADER] = request_id
                closes = told.get("connection") == "close"
            elif closes and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await self._read_out(body)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        try:
            try:
                deadline = self._admitted(scope, headers)
            except BodyRefused as error:
                await closing(refusal(error.problem, scope["path"]))(scope, body.receive, named)
            else:
                scope.setdefault("state", {})["deadline"] = deadline
                await self._app(scope, self._limited(body, deadline), named)
        except Exception:
            status = FAILED
            raise
        finally:
            route = getattr(scope.get("route"), "path", UNKNOWN)
            HTTP_REQUESTS.labels(route, str(status)).inc()

    def _admitted(self, scope: Scope, headers: Headers) -> Deadline:
        """Until when the request is worth something. Raises BodyRefused where it is not read."""
        path, deadline = scope["path"], Deadline()
        try:
            self._require_host(headers)
            if path not in OPEN and not f"{path}/".startswith(f"{OPEN_FOLDER}/"):
                self._require_caller(headers)
                deadline = self._deadline(headers)
        except (Forbidden, Unauthenticated, InvalidInput) as error:
            raise BodyRefused(problem(error)) from None
        encoding = headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise BodyRefused(encoded(encoding))
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self._max_body_bytes:
            raise BodyRefused(too_large(self._max_body_bytes))
        return deadline

    def _limited(self, body: _Body, deadline: Deadline) -> Receive:
        """A body without an announced length is counted as it comes, and has to come."""
        left = self._max_body_bytes

        async def counted() -> Message:
            nonlocal left
            # behind the body comes that the client has left, for which answers wait
            message = await (body.receive() if body.over else self._in_time(body, deadline))
            if message["type"] == "http.request":
                left -= len(message.get("body", b""))
                if left < 0:
                    raise BodyRefused(too_large(self._max_body_bytes))
            return message

        return counted

    async def _read_out(self, body: _Body) -> None:
        """What is left of a body that nobody wants.

        Many clients send all of it before they read an answer, and would find a closed connection
        in the answer's place.
        """
        if self._reading.ended:
            pieces, everything = REST_S, REST_S
        else:
            pieces, everything = UNWANTED_PIECE_S, UNWANTED_S
        left = UNWANTED_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(everything):
                while left > 0 and not body.over:
                    async with asyncio.timeout(pieces):
                        left -= len((await body.receive()).get("body", b""))

    async def _in_time(self, body: _Body, deadline: Deadline) -> Message:
        """Behind the end of reading what is there is read, so that it is refused as what it is."""
        ended = self._reading.ended
        try:
            patience = asyncio.timeout(REST_S) if ended else self._reading.within(BODY_S)
            async with deadline.bounding(), patience:
                return await body.receive()
        except TimeoutError:
            body.over = True
            raise BodyRefused(problem(stopping()) if ended else too_slow(BODY_S)) from None
        except Unavailable as error:
            raise BodyRefused(problem(error)) from None
        except DeadlineExceeded as error:
            count_refused(error)
            raise BodyRefused(problem(error)) from None


def closing(answer: JsonAnswer) -> JsonAnswer:
    """The last one on its connection: nobody looks at the rest of the body."""
    answer.headers["connection"] = "close"
    return answer


def deadline_of(request: Request) -> Deadline:
    """Of a request that passed here, counted from when its head came."""
    deadline: Deadline = request.state.deadline
    return deadline


class _Body:
    """What comes of a request behind its head; `over` once no more of its body is expected."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.over = False

    async def receive(self) -> Message:
        """The next of it."""
        message = await self._receive()
        self.over = not message.get("more_body", False)
        return message


class BodyRefused(HTTPException):
    """Of the one kind that the framework passes on from where it reads a body."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.status, problem.message)
        self.problem = problem


def _request_id(headers: Headers) -> str:
    """The client's own, where it is fit to be printed; otherwise a new one."""
    said = headers.get(REQUEST_ID_HEADER, "")
    return said if is_request_id(said) else uuid.uuid4().hex
