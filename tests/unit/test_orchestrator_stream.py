"""A gRPC stream to a service: ends, cancellations and errors."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from draftloop.errors import DeadlineExceeded, DraftloopError, Mismatch, Overloaded, Unavailable
from draftloop.rpc.interceptors import DETAILS_KEY, to_status
from orchestrator.stream import Disconnected, ServiceFailed, Stream

# The message of a proxy whose replica is gone.
RESET = "Stream removed (RST_STREAM (Received RST_STREAM with error code 2))"


@pytest.mark.parametrize("method", ["write", "done_writing"])
def test_closing_never_fails(method: str) -> None:
    """gRPC raises its own errors if a deadline passes between its steps."""
    call = Mock(write=AsyncMock(), done_writing=AsyncMock())
    getattr(call, method).side_effect = RuntimeError('Failed "execute_batch"')
    asyncio.run(Stream(call, close_message=None, timeout_s=1).close())
    call.cancel.assert_called_once_with()


@pytest.mark.parametrize("method", ["write", "read"])
def test_cancelled_ask_cancels_the_call(method: str) -> None:
    """gRPC does not cancel it while an answer arrives; a half-closed call ends once it is read."""
    call = Mock(write=AsyncMock(), read=AsyncMock())
    getattr(call, method).side_effect = asyncio.CancelledError
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(Stream(call, close_message=None, timeout_s=1).ask("anything"))
    call.cancel.assert_called_once_with()


@pytest.mark.parametrize(
    ("time_left", "expected"), [(None, Unavailable), (9, Unavailable), (0, DeadlineExceeded)]
)
def test_call_without_time_left_is_a_deadline_error(
    time_left: float | None, expected: type[DraftloopError]
) -> None:
    """Otherwise the replica would count as failing, and the client would get UNAVAILABLE."""
    write = AsyncMock(side_effect=asyncio.InvalidStateError)
    call = Mock(write=write, time_remaining=Mock(return_value=time_left))
    with pytest.raises(expected):
        asyncio.run(Stream(call, close_message=None, timeout_s=1).ask("anything"))


@pytest.mark.parametrize("answer", [None, grpc.aio.EOF])
def test_missing_answer_means_the_service_is_unavailable(answer: Any) -> None:
    """gRPC returns None for bytes that are not a message."""
    call = Mock(write=AsyncMock(), read=AsyncMock(return_value=answer))
    with pytest.raises(Unavailable):
        asyncio.run(Stream(call, close_message=None, timeout_s=1).ask("anything"))


@pytest.mark.parametrize(
    ("code", "details", "expected", "text"),
    [
        (
            "RESOURCE_EXHAUSTED",
            "Received message larger than max (9 vs. 4)",
            Unavailable,
            "Received message larger than max (9 vs. 4) (--max-message-bytes)",
        ),
        ("DEADLINE_EXCEEDED", "of a proxy's own", Unavailable, "of a proxy's own"),
        ("UNAVAILABLE", "Socket closed", Disconnected, "Socket closed"),
        ("CANCELLED", "", Disconnected, "CANCELLED"),
        ("INTERNAL", "", ServiceFailed, "INTERNAL"),
        ("INTERNAL", RESET, Disconnected, RESET),
        ("INTERNAL", "Internal error from Core", Disconnected, "Internal error from Core"),
    ],
)
def test_statuses_become_the_services_errors(
    code: str, details: str, expected: type[DraftloopError], text: str
) -> None:
    # A status becomes the error that the service meant, or a lost connection.
    with pytest.raises(expected) as caught:
        asyncio.run(refusing_stream(code, details).ask("anything"))
    assert type(caught.value) is expected and str(caught.value) == text


@pytest.mark.parametrize("code", ["DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE"])
def test_errors_at_the_deadline_are_deadline_errors(code: str) -> None:
    with pytest.raises(DeadlineExceeded):
        asyncio.run(refusing_stream(code, "Stream removed", time_left=0.0).ask("anything"))


def test_overloaded_error_keeps_its_retry_hint() -> None:
    """Every hint used to be replaced by one second."""
    error = Overloaded("full", retry_after_s=7.5)
    code, hint = to_status(error)
    with pytest.raises(Overloaded) as caught:
        asyncio.run(refusing_stream(code.name, str(error), hint).ask("anything"))
    assert caught.value.retry_after_s == 7.5 and str(caught.value) == str(error)


def test_unavailable_message_of_a_service_is_kept() -> None:
    """Clients get the service's own message; a lost connection's may contain addresses."""
    error = Unavailable("the engine is stopping")
    code, hint = to_status(error)
    with pytest.raises(Unavailable) as caught:
        asyncio.run(refusing_stream(code.name, str(error), hint).ask("anything"))
    assert type(caught.value) is Unavailable and str(caught.value) == str(error)


def refusing_stream(
    code: str, details: str, detail: Message | None = None, time_left: float | None = None
) -> Stream:
    """A stream to a service that answers with an error, with `time_left` seconds left."""
    nothing, trailing = grpc.aio.Metadata(), grpc.aio.Metadata()
    if detail is not None:
        status = Status()
        status.details.add().Pack(detail)
        trailing.add(DETAILS_KEY, status.SerializeToString())
    error = grpc.aio.AioRpcError(grpc.StatusCode[code], nothing, trailing, details)
    call = Mock(write=AsyncMock(side_effect=error), time_remaining=Mock(return_value=time_left))
    return Stream(call, close_message=None, timeout_s=1)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("MISMATCH", Mismatch), ("STALE_SESSION", Unavailable), ("", Unavailable)],
)
def test_mismatch_is_distinguished_from_an_unavailable_service(
    reason: str, expected: type[DraftloopError]
) -> None:
    """A replica of another model refuses deliberately; asking it again would change nothing."""
    info = ErrorInfo(reason=reason) if reason else None
    with pytest.raises(expected) as caught:
        asyncio.run(refusing_stream("FAILED_PRECONDITION", "another model", info).ask("anything"))
    assert type(caught.value) is expected and str(caught.value) == "another model"
