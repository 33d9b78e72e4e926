"""Translates failed calls on the client's side: the inverse of `interceptors.py`."""

from __future__ import annotations

from typing import TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from draftloop.config import DEFAULT_PORTS
from draftloop.errors import (
    DeadlineExceeded,
    DraftloopError,
    Forbidden,
    InvalidInput,
    Mismatch,
    Overloaded,
    Unauthenticated,
    Unavailable,
)
from draftloop.rpc.interceptors import DETAILS_KEY
from draftloop.rpc.unconnected import NO_CONNECTION, no_connection

Detail = TypeVar("Detail", bound=Message)

# In gRPC's message when something answers at the address, but is not a gRPC server.
NO_SETTINGS = "SETTINGS frame"
NOBODY_THERE = (NO_CONNECTION, "resolution failed", "errors resolving")

# Errors that carry nothing but their text.
PLAIN: dict[grpc.StatusCode, type[DraftloopError]] = {
    grpc.StatusCode.FAILED_PRECONDITION: Mismatch,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: Forbidden,
}


def error_info(error: grpc.aio.AioRpcError) -> ErrorInfo | None:
    """The ErrorInfo detail of a failed call, if any."""
    return _detail(error, ErrorInfo)


def _detail(error: grpc.aio.AioRpcError, kind: type[Detail]) -> Detail | None:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            for packed in Status.FromString(value).details:
                message = kind()
                if packed.Unpack(message):
                    return message
    return None


def overloaded(error: grpc.aio.AioRpcError) -> Overloaded | None:
    """The Overloaded error behind a call that failed with RESOURCE_EXHAUSTED.

    None if the status has no retry hint: then gRPC's own limit on the size of messages was
    exceeded, and trying again would not help.
    """
    retry = _detail(error, RetryInfo)
    if retry is None:
        return None
    message, _, _ = (error.details() or "").partition("; try again")
    return Overloaded(message, _seconds(retry))


def to_error(error: grpc.aio.AioRpcError, address: str) -> DraftloopError:
    """The error that the server of a failed call raised.

    `retry_after_s` is the server's hint, or 0 without one.
    """
    code, text = error.code(), error.details() or error.code().name
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return _invalid(error, text)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return overloaded(error) or DraftloopError(f"{text} (--max-message-bytes of the server)")
    if code is grpc.StatusCode.UNAVAILABLE:
        return _unavailable(error, text, address)
    if code is grpc.StatusCode.CANCELLED:  # by gRPC's core, for calls that come as a server stops
        return Unavailable(f"the server at {address} stopped before it took the call", 0)
    if code in PLAIN:
        return PLAIN[code](text)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded()
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Mismatch(f"what answers at {address} is no Draftloop orchestrator: {text}")
    return DraftloopError(f"{code.name}: {text}")


def _invalid(error: grpc.aio.AioRpcError, text: str) -> DraftloopError:
    detail = _detail(error, BadRequest)
    if detail is None or not detail.field_violations:
        return DraftloopError(text)
    broken = detail.field_violations[0]
    return InvalidInput.from_description(broken.field, broken.description)


def _unavailable(error: grpc.aio.AioRpcError, text: str, address: str) -> DraftloopError:
    retry = _detail(error, RetryInfo)
    if retry is not None:
        return Unavailable(text, _seconds(retry))
    if NO_SETTINGS in text:
        hint = f"the HTTP API's port is not gRPC's, by default {DEFAULT_PORTS['orchestrator']}"
        reason = "speaks no gRPC, or only over TLS (--tls-ca)"
        return Unavailable(f"what listens at {address} {reason}; {hint}", 0)
    if trouble := no_connection(address, text, "--tls-ca"):
        return Unavailable(trouble, 0)
    if any(sign in text.lower() for sign in NOBODY_THERE):
        hint = "start one with `draftloop up`, or give the address of another"
        return Unavailable(f"no server at {address}: {hint}", 0)
    return Unavailable(f"the connection to {address} broke: {text}", 0)


def _seconds(retry: RetryInfo) -> float:
    return float(retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9)
