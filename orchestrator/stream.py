"""One stream to a service: one message out, one in, within a time limit; errors are translated."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from draftloop.deadline import CLOCKS_APART_S
from draftloop.errors import (
    DeadlineExceeded,
    DraftloopError,
    InvalidInput,
    Mismatch,
    Unavailable,
)
from draftloop.load import ServiceLoad
from draftloop.rpc.interceptors import DETAILS_KEY
from draftloop.rpc.status import error_info, overloaded
from orchestrator.watchdog import Watchdog, no_heartbeat


def start_call(call: Callable[[], Any]) -> Any:
    """Starts a gRPC call. Raises Unavailable if its channel has been closed meanwhile."""
    try:
        return call()
    except grpc.aio.UsageError as error:
        raise Unavailable(f"the connection is gone ({error})") from None


class NoAnswer(Unavailable):
    """The service did not answer within the timeout."""


class ServiceFailed(Unavailable):
    """The service is reachable but hit an internal error, which may happen again."""


class Stream:
    """A bidirectional gRPC stream that raises our own errors.

    Unavailable: the stream broke, no answer came in time, or the service failed.
    InvalidInput, Mismatch, Overloaded: as raised by the service.
    DeadlineExceeded: the call's own deadline has passed.
    """

    def __init__(self, call: Any, close_message: Any, timeout_s: float) -> None:
        self._call = call
        self._close_message = close_message
        self._timeout_s = timeout_s  # of an answer, unless `ask` is given another one
        self.load: ServiceLoad | None = None  # as of the last answer

    async def ask(
        self,
        message: Any,
        timeout_s: float | None = None,
        silence_s: Callable[[], float] = no_heartbeat,
    ) -> Any:
        """Sends a message and waits for its answer, up to `timeout_s` or the stream's timeout.

        Waits longer as long as the service gives other signs of life: `silence_s()` returns the
        seconds since the last one.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        with self._translated_errors():
            async with Watchdog(timeout_s, silence_s):
                answer = await self._exchange(message)
        if answer is grpc.aio.EOF:
            raise Unavailable("the service ended the stream")
        if answer is None:  # gRPC could not parse the message
            raise Unavailable("the service's answer cannot be read")
        return answer

    async def _exchange(self, message: Any) -> Any:
        try:
            await self._call.write(message)
        except asyncio.InvalidStateError:  # the call ended between two messages
            if self._call.cancelled():  # reading would look like a cancellation of this task
                raise
        return await self._call.read()  # raises the status of a call that has ended

    async def close(self) -> None:
        """Tells the service that this side has finished. Never fails or waits for an answer."""
        try:
            await self._call.write(self._close_message)
            await self._call.done_writing()
        except Exception:  # gRPC's, some of them private: the call ended at this very moment
            self._call.cancel()

    def cancel(self) -> None:
        """Drops the stream; the service frees the session."""
        self._call.cancel()

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise NoAnswer("no answer came in time") from None
        except asyncio.CancelledError:
            # gRPC does so itself, but for the moment in which an answer comes: that would never be
            # read, and the call, which ends behind it, be open up to its deadline.
            self._call.cancel()
            raise
        except asyncio.InvalidStateError:
            raise self._unless_deadline_passed(Unavailable("the stream has ended")) from None
        except grpc.aio.AioRpcError as error:
            translated = _translate_error(error)
            raise (
                self._unless_deadline_passed(translated)
                if isinstance(translated, Unavailable)
                else translated
            ) from None

    def _unless_deadline_passed(self, error: Unavailable) -> DraftloopError:
        """DeadlineExceeded if the call's deadline has passed, otherwise `error`.

        Only the call's remaining time tells: if the deadline cuts a message in two, gRPC reports an
        internal error, and a proxy in between may report a deadline of its own.
        """
        remaining_s = self._call.time_remaining()
        deadline_passed = remaining_s is not None and remaining_s < CLOCKS_APART_S
        return DeadlineExceeded() if deadline_passed else error


class SessionGone(Unavailable):
    """The service is reachable but no longer has the session."""


class Disconnected(Unavailable):
    """An error of gRPC itself, not of the service. It may name addresses: for the log only."""


# UNAVAILABLE: the service is gone. CANCELLED: the call came while the service was stopping.
CORE_STATUSES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
# INTERNAL of its own making: who is between has reset the stream, which no service of ours does.
RESET_SIGNS = ("RST_STREAM", "Internal error from Core")


def _translate_error(error: grpc.aio.AioRpcError) -> DraftloopError:
    """Translates a gRPC error into one of ours."""
    text = error.details() or error.code().name
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        field, _, description = text.partition(": ")
        return InvalidInput.from_description(field, description)
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return overloaded(error) or Unavailable(f"{text} (--max-message-bytes)")
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return SessionGone(text)
    if error.code() is grpc.StatusCode.INTERNAL:
        cut_off = any(sign in text for sign in RESET_SIGNS)
        return Disconnected(text) if cut_off else ServiceFailed(text)
    info = error_info(error)
    if info is not None and info.reason == "MISMATCH":
        return Mismatch(text)
    has_details = any(key == DETAILS_KEY for key, _ in error.trailing_metadata() or ())
    by_core = error.code() in CORE_STATUSES and not has_details
    return Disconnected(text) if by_core else Unavailable(text)
