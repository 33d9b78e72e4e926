"""The only place where exceptions become gRPC statuses with rich details."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, NoReturn
from urllib.parse import quote

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from draftloop import logs
from draftloop.errors import (
    AnswerTooLarge,
    DeadlineExceeded,
    DraftloopError,
    Forbidden,
    InvalidInput,
    Mismatch,
    Overloaded,
    SessionLost,
    StaleSession,
    Unauthenticated,
    Unavailable,
    shortened,
)
from draftloop.rpc.channel import NO_LIMIT
from draftloop.rpc.decoding import lenient, readable
from draftloop.rpc.metrics import handled

DETAILS_KEY = "grpc-status-details-bin"
DOMAIN = "draftloop"
# Limit for an error's text as it is sent. Clients accept 8 KB of trailing metadata; beyond that,
# they report a different error.
MAX_STATUS_BYTES = 7000

log = logs.get(__name__)


def to_status(error: DraftloopError) -> tuple[grpc.StatusCode, Message | None]:
    """Status code and detail message for an error."""
    if isinstance(error, InvalidInput):
        violation = BadRequest.FieldViolation(
            field=error.field, description=sendable(error.description)
        )
        return grpc.StatusCode.INVALID_ARGUMENT, BadRequest(field_violations=[violation])
    if isinstance(error, Overloaded):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, _retry(error.retry_after_s)
    if isinstance(error, AnswerTooLarge):  # gRPC's own status for it, but without its traceback
        return grpc.StatusCode.RESOURCE_EXHAUSTED, None
    if isinstance(error, Unauthenticated):
        return grpc.StatusCode.UNAUTHENTICATED, None
    if isinstance(error, Forbidden):
        return grpc.StatusCode.PERMISSION_DENIED, None
    if isinstance(error, Unavailable):
        return grpc.StatusCode.UNAVAILABLE, _retry(error.retry_after_s)
    if isinstance(error, DeadlineExceeded):
        return grpc.StatusCode.DEADLINE_EXCEEDED, None
    if isinstance(error, StaleSession):
        position = {"committed_length": str(error.actual)}
        return grpc.StatusCode.FAILED_PRECONDITION, _reason("STALE_SESSION", position)
    if isinstance(error, SessionLost):
        return grpc.StatusCode.NOT_FOUND, _reason("SESSION_LOST")
    if isinstance(error, Mismatch):
        return grpc.StatusCode.FAILED_PRECONDITION, _reason("MISMATCH")
    return grpc.StatusCode.INTERNAL, None


def sendable(text: str) -> str:
    """The text, shortened with an ellipsis if it would be too large to send."""
    sent = itertools.accumulate(map(_bytes_sent, text))
    return shortened(
        text, sum(1 for _ in itertools.takewhile(lambda n: n <= MAX_STATUS_BYTES, sent))
    )


def _bytes_sent(character: str) -> int:
    """Bytes for one character: percent-encoded once, and twice in base64 if there is a detail."""
    return len(quote(character)) + 3 * len(character.encode())


def _retry(seconds: float) -> RetryInfo:
    delay = Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))
    return RetryInfo(retry_delay=delay)


def _reason(name: str, metadata: Mapping[str, str] | None = None) -> ErrorInfo:
    return ErrorInfo(reason=name, domain=DOMAIN, metadata=metadata)


async def abort(context: grpc.aio.ServicerContext, error: Exception, method: str) -> NoReturn:
    """Ends the call with the error's status; unexpected errors are logged and sent as internal."""
    code, detail = grpc.StatusCode.INTERNAL, None
    text = "internal error; the service's log has the cause"
    if isinstance(error, DraftloopError):
        code, detail = to_status(error)
        text = sendable(str(error))
    else:
        log.error("unforeseen error", method=method, exc_info=error)
    trailers: tuple[tuple[str, bytes], ...] = ()
    if detail is not None:
        packed = AnyMessage()
        packed.Pack(detail)
        status = Status(code=code.value[0], message=text, details=[packed])
        trailers = ((DETAILS_KEY, status.SerializeToString()),)
    await context.abort(code, text, trailers)
    raise AssertionError("abort always raises")


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Wraps every handler so that its exceptions become documented statuses.

    `running` is the number of unfinished calls to our own services. An answer of more than
    `max_bytes`, which gRPC would not send, is translated like any other error.
    """

    def __init__(self, max_bytes: int = NO_LIMIT) -> None:
        self.running = 0
        self._max_bytes = max_bytes

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Replaces the handler with one that translates its exceptions."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/draftloop."):
            return handler
        method = handler_call_details.method
        coding = (lenient(handler.request_deserializer), handler.response_serializer)
        if handler.unary_unary:
            translated = self._translate_unary(handler.unary_unary, method)
            return grpc.unary_unary_rpc_method_handler(translated, *coding)
        if handler.unary_stream:
            translated = self._translate_stream(handler.unary_stream, method)
            return grpc.unary_stream_rpc_method_handler(translated, *coding)
        translated = self._translate_stream(handler.stream_stream, method)
        return grpc.stream_stream_rpc_method_handler(translated, *coding)

    def _translate_unary(self, behavior: Callable[..., Any], method: str) -> Callable[..., Any]:
        async def translated(request: Any, context: grpc.aio.ServicerContext) -> Any:
            with self._counted(), handled(method, context):
                try:
                    return self._sendable(await behavior(readable(request), context))
                except grpc.aio.AbortError:
                    raise
                except Exception as error:
                    await abort(context, error, method)

        return translated

    def _translate_stream(self, behavior: Callable[..., Any], method: str) -> Callable[..., Any]:
        async def translated(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            with self._counted(), handled(method, context):
                try:
                    # A cancelled call frees its session now, not at the next garbage collection.
                    running = contextlib.aclosing(behavior(readable(request), context))
                    async with running as responses:
                        async for response in responses:
                            yield self._sendable(response)
                except grpc.aio.AbortError:
                    raise
                except Exception as error:
                    await abort(context, error, method)

        return translated

    def _sendable(self, response: Any) -> Any:
        """Returns the response. Raises AnswerTooLarge if it is too large to send."""
        if self._max_bytes != NO_LIMIT and (size := response.ByteSize()) > self._max_bytes:
            raise AnswerTooLarge(size, self._max_bytes)
        return response

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
