"""The gRPC interceptor: answers unchanged, errors with documented statuses, clean-up done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

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
)
from draftloop.rpc.channel import NO_LIMIT
from draftloop.rpc.interceptors import DETAILS_KEY, ErrorInterceptor, to_status
from draftloop.rpc.metrics import HANDLED
from protos import generation_pb2 as pb

Code = grpc.StatusCode
STATUSES = [
    (InvalidInput("top_p", "must be at most 1", 2), Code.INVALID_ARGUMENT, BadRequest),
    (Overloaded("full"), Code.RESOURCE_EXHAUSTED, RetryInfo),
    (AnswerTooLarge(9, 4), Code.RESOURCE_EXHAUSTED, type(None)),
    (Unauthenticated("who"), Code.UNAUTHENTICATED, type(None)),
    (Forbidden("no"), Code.PERMISSION_DENIED, type(None)),
    (Unavailable("gone"), Code.UNAVAILABLE, RetryInfo),
    (DeadlineExceeded(), Code.DEADLINE_EXCEEDED, type(None)),
    (StaleSession(assumed=3, actual=2), Code.FAILED_PRECONDITION, ErrorInfo),
    (SessionLost("dropped"), Code.NOT_FOUND, ErrorInfo),
    (Mismatch("other vocabulary"), Code.FAILED_PRECONDITION, ErrorInfo),
    (DraftloopError("something"), Code.INTERNAL, type(None)),
]


class RecordingContext:
    """Records how the call was aborted."""

    status = Code.UNKNOWN

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds

    def time_remaining(self) -> float | None:
        return self._seconds

    def code(self) -> grpc.StatusCode:
        return self.status

    async def abort(self, code: Any, text: str, trailers: Any) -> NoReturn:
        self.status, self.text, self.trailers = code, text, dict(trailers)
        raise grpc.aio.AbortError

    def detail(self, kind: Callable[[], Any]) -> Any:
        (packed,) = Status.FromString(self.trailers[DETAILS_KEY]).details
        message = kind()
        assert packed.Unpack(message)
        return message


async def intercepted(
    handler: Any, method: str = "/draftloop.v1.Generation/Any", most_bytes: int = NO_LIMIT
) -> Any:
    async def continuation(_: Any) -> Any:
        return handler

    details = SimpleNamespace(method=method)
    return await ErrorInterceptor(most_bytes).intercept_service(continuation, details)


def unary_handler(error: Exception | None = None) -> Any:
    async def behavior(request: Any, context: Any) -> Any:
        if error is not None:
            raise error
        return request + 1

    return grpc.unary_unary_rpc_method_handler(behavior)


class StreamingHandler:
    """A handler with two answers and perhaps an error; records whether it cleaned up."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.cleaned_up = False

    async def __call__(self, request: Any, context: Any) -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
            if self._error is not None:
                raise self._error
        finally:
            self.cleaned_up = True


@pytest.mark.parametrize(("error", "code", "kind"), STATUSES, ids=lambda v: type(v).__name__)
def test_errors_map_to_their_status(error: DraftloopError, code: Any, kind: type[Any]) -> None:
    status, detail = to_status(error)
    assert status is code and isinstance(detail, kind)


def test_error_details_carry_retry_delay_and_position() -> None:
    _, wait = to_status(Overloaded("full", retry_after_s=1.5))
    assert isinstance(wait, RetryInfo)
    assert (wait.retry_delay.seconds, wait.retry_delay.nanos) == (1, 500_000_000)
    _, position = to_status(StaleSession(assumed=3, actual=2))
    assert isinstance(position, ErrorInfo)
    assert (position.reason, position.domain) == ("STALE_SESSION", "draftloop")
    assert dict(position.metadata) == {"committed_length": "2"}


def test_lost_session_error_has_no_committed_length() -> None:
    """A lost session used to report a committed length of 0."""
    _, info = to_status(SessionLost("dropped"))
    assert isinstance(info, ErrorInfo)
    assert (info.reason, info.domain, dict(info.metadata)) == ("SESSION_LOST", "draftloop", {})


async def test_invalid_input_status_carries_text_and_field() -> None:
    handler = await intercepted(unary_handler(InvalidInput("top_p", "must be at most 1", 2)))
    context = RecordingContext()
    with pytest.raises(grpc.aio.AbortError):
        await handler.unary_unary(1, context)
    assert context.code() is Code.INVALID_ARGUMENT
    assert context.text == "top_p: must be at most 1; got 2"
    assert context.detail(BadRequest).field_violations[0].field == "top_p"


async def test_unexpected_error_hides_internal_details() -> None:
    context = RecordingContext()
    with pytest.raises(grpc.aio.AbortError):
        await (await intercepted(unary_handler(KeyError("secret")))).unary_unary(1, context)
    assert context.code() is Code.INTERNAL
    assert "secret" not in context.text and not context.trailers


async def test_answers_pass_unchanged() -> None:
    assert await (await intercepted(unary_handler())).unary_unary(1, RecordingContext()) == 2
    for make, field in (
        (grpc.unary_stream_rpc_method_handler, "unary_stream"),
        (grpc.stream_stream_rpc_method_handler, "stream_stream"),
    ):
        behavior = getattr(await intercepted(make(StreamingHandler())), field)
        assert [answer async for answer in behavior(None, RecordingContext())] == [1, 2]


async def test_oversized_answer_is_resource_exhausted() -> None:
    """gRPC's own handling logged a traceback and counted the call as answered."""

    async def behavior(length: int, context: Any) -> pb.DetokenizeResponse:
        return pb.DetokenizeResponse(text="x" * length)

    async def behaviors(length: int, context: Any) -> AsyncIterator[pb.DetokenizeResponse]:
        yield await behavior(length, context)

    one = await intercepted(grpc.unary_unary_rpc_method_handler(behavior), most_bytes=50)
    stream = await intercepted(grpc.unary_stream_rpc_method_handler(behaviors), most_bytes=50)
    assert (await one.unary_unary(48, RecordingContext())).ByteSize() == 50
    assert [each.ByteSize() async for each in stream.unary_stream(48, RecordingContext())] == [50]
    for answer in (one.unary_unary, lambda *given: anext(stream.unary_stream(*given))):
        context = RecordingContext()
        with pytest.raises(grpc.aio.AbortError):
            await answer(49, context)
        assert context.code() is Code.RESOURCE_EXHAUSTED
        assert context.text == "answer: must have at most 50 bytes; got 51"


async def test_abort_by_the_handler_is_kept() -> None:
    context = RecordingContext()
    with pytest.raises(grpc.aio.AbortError):
        await (await intercepted(unary_handler(grpc.aio.AbortError()))).unary_unary(1, context)
    assert not hasattr(context, "text")


async def test_failing_stream_cleans_up_before_its_status_is_sent() -> None:
    streaming, context = StreamingHandler(Unavailable("gone")), RecordingContext()
    handler = await intercepted(grpc.stream_stream_rpc_method_handler(streaming))
    answers: list[int] = []
    with pytest.raises(grpc.aio.AbortError):
        async for answer in handler.stream_stream(None, context):
            answers.append(answer)
    assert answers == [1, 2] and streaming.cleaned_up
    assert context.code() is Code.UNAVAILABLE


async def test_abandoned_stream_cleans_up_at_once() -> None:
    """Sessions are freed when a call is cancelled, not at the next garbage collection."""
    streaming = StreamingHandler()
    handler = await intercepted(grpc.stream_stream_rpc_method_handler(streaming))
    answers = handler.stream_stream(None, RecordingContext())
    assert await anext(answers) == 1
    await answers.aclose()
    assert streaming.cleaned_up


@pytest.mark.parametrize(
    ("time_left", "code"), [(None, "CANCELLED"), (60.0, "CANCELLED"), (0.0, "DEADLINE_EXCEEDED")]
)
async def test_call_at_its_deadline_is_not_counted_as_cancelled(
    time_left: float | None, code: str
) -> None:
    """gRPC cancels the handler in both cases."""
    handler = await intercepted(grpc.stream_stream_rpc_method_handler(StreamingHandler()))
    answers = handler.stream_stream(None, RecordingContext(time_left))
    before = HANDLED.labels("Any", code)._value.get()
    assert await anext(answers) == 1
    await answers.aclose()
    assert HANDLED.labels("Any", code)._value.get() == before + 1


async def test_other_services_and_unknown_methods_are_not_wrapped() -> None:
    handler = unary_handler()
    assert await intercepted(handler, "/grpc.health.v1.Health/Check") is handler
    assert await intercepted(None) is None
