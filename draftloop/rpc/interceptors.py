"""The one place where exceptions become gRPC statuses with rich details."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from draftloop import logs
from draftloop.errors import (
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
)
from draftloop.rpc.metrics import handled

DETAILS_KEY = "grpc-status-details-bin"
DOMAIN = "draftloop"

log = logs.get(__name__)


def to_status(error: DraftloopError) -> tuple[grpc.StatusCode, Message | None]:
    """Status code and detail message of an error."""
    if isinstance(error, InvalidInput):
        violation = BadRequest.FieldViolation(field=error.field, description=error.description)
        return grpc.StatusCode.INVALID_ARGUMENT, BadRequest(field_violations=[violation])
    if isinstance(error, Overloaded):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, _retry(error.retry_after_s)
    if isinstance(error, Unauthenticated):
        return grpc.StatusCode.UNAUTHENTICATED, None
    if isinstance(error, Forbidden):
        return grpc.StatusCode.PERMISSION_DENIED, None
    if isinstance(error, Unavailable):
        return grpc.StatusCode.UNAVAILABLE, _retry(error.retry_after_s)
    if isinstance(error, DeadlineExceeded):
        return grpc.StatusCode.DEADLINE_EXCEEDED, None
    if isinstance(error, StaleSession):
        return grpc.StatusCode.FAILED_PRECONDITION, _position("STALE_SESSION", error.actual)
    if isinstance(error, SessionLost):
        return grpc.StatusCode.NOT_FOUND, _position("SESSION_LOST", error.committed_length)
    if isinstance(error, Mismatch):
        return grpc.StatusCode.FAILED_PRECONDITION, ErrorInfo(reason="MISMATCH", domain=DOMAIN)
    return grpc.StatusCode.INTERNAL, None


def _retry(seconds: float) -> RetryInfo:
    delay = Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))
    return RetryInfo(retry_delay=delay)


def _position(reason: str, committed_length: int) -> ErrorInfo:
    metadata = {"committed_length": str(committed_length)}
    return ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata)


async def abort(context: grpc.aio.ServicerContext, error: Exception, method: str) -> NoReturn:
    """Ends the call with the error's status; an unforeseen error is logged and named as such."""
    code, detail = grpc.StatusCode.INTERNAL, None
    text = "internal error; the service's log has the cause"
    if isinstance(error, DraftloopError):
        code, detail = to_status(error)
        text = str(error)
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
    """Wraps every handler so that what it raises leaves as a documented status."""

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Replaces the handler by one that translates its exceptions."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/draftloop."):
            return handler
        method = handler_call_details.method
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                _translate_unary(handler.unary_unary, method),
                handler.request_deserializer,
                handler.response_serializer,
            )
        wrap, make = (
            (handler.unary_stream, grpc.unary_stream_rpc_method_handler)
            if handler.unary_stream
            else (handler.stream_stream, grpc.stream_stream_rpc_method_handler)
        )
        return make(
            _translate_stream(wrap, method),
            handler.request_deserializer,
            handler.response_serializer,
        )


def _translate_unary(behavior: Callable[..., Any], method: str) -> Callable[..., Any]:
    async def translated(request: Any, context: grpc.aio.ServicerContext) -> Any:
        with handled(method, context):
            try:
                return await behavior(request, context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await abort(context, error, method)

    return translated


def _translate_stream(behavior: Callable[..., Any], method: str) -> Callable[..., Any]:
    async def translated(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        responses = behavior(request, context)
        with handled(method, context):
            try:
                async for response in responses:
                    yield response
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await abort(context, error, method)
            finally:
                await responses.aclose()  # a cancelled call frees its session now, not later

    return translated
