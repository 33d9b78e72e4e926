"""One stream to a service: a message out, a message in, within a time, or an error of ours."""

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
from orchestrator.watchdog import Watchdog, nothing_heard


def begun(call: Callable[[], Any]) -> Any:
    """The call, once it has begun. Raises Unavailable where its channel was closed meanwhile."""
    try:
        return call()
    except grpc.aio.UsageError as error:
        raise Unavailable(f"the connection is gone ({error})") from None


class NoAnswer(Unavailable):
    """The service said nothing within the time of one answer."""


class ServiceFailed(Unavailable):
    """The service is there and met an error that it did not foresee: it may meet it again."""


class Stream:
    """Raises Unavailable where the stream broke, no answer came in time or the service failed.

    What the service said on purpose comes as what it was there: InvalidInput, Mismatch, Overloaded.
    DeadlineExceeded: the call's own deadline has passed.
    """

    def __init__(self, call: Any, farewell: Any, timeout_s: float) -> None:
        self._call = call
        self._farewell = farewell
        self._timeout_s = timeout_s  # of an answer, as a rule
        self.load: ServiceLoad | None = None  # as of the last answer

    async def ask(
        self,
        message: Any,
        timeout_s: float | None = None,
        unheard_s: Callable[[], float] = nothing_heard,
    ) -> Any:
        """Sends a message and waits for its answer, for `timeout_s` instead of as long as a rule.

        Longer where the service gives other signs of life: `unheard_s()` are the seconds since the
        last.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        with self._our_errors():
            async with Watchdog(timeout_s, unheard_s):
                await self._call.write(message)
                answer = await self._call.read()
        if answer is grpc.aio.EOF:
            raise Unavailable("the service ended the stream")
        if answer is None:  # what gRPC makes of bytes that are no message
            raise Unavailable("the service's answer cannot be read")
        return answer

    async def close(self) -> None:
        """Says that this side has finished; never fails and never waits for an answer."""
        try:
            await self._call.write(self._farewell)
            await self._call.done_writing()
        except Exception:  # gRPC's own, some of them private: the call ended at this very moment
            self._call.cancel()

    def cancel(self) -> None:
        """Drops the stream; the service frees the session."""
        self._call.cancel()

    @contextlib.contextmanager
    def _our_errors(self) -> Iterator[None]:
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
            raise self._gone(Unavailable("the stream has ended")) from None
        except grpc.aio.AioRpcError as error:
            meaning = _meaning(error)
            raise (self._gone(meaning) if isinstance(meaning, Unavailable) else meaning) from None

    def _gone(self, error: Unavailable) -> DraftloopError:
        """Whether it is the call's deadline, which only its own time tells.

        Where that cuts a message in two, gRPC speaks of an internal error; and who is between may
        speak of a deadline that is its own.
        """
        left = self._call.time_remaining()
        late = left is not None and left < CLOCKS_APART_S
        return DeadlineExceeded() if late else error


class SessionGone(Unavailable):
    """The service is there, and has the session no more."""


class Disconnected(Unavailable):
    """No word of the service's but gRPC's own, which may name addresses: for the log alone."""


# UNAVAILABLE of who is gone, CANCELLED of what comes in the moment in which a service stops.
BY_CORE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
# INTERNAL of its own making: who is between has reset the stream, which no service of ours does.
CUT_OFF = ("RST_STREAM", "Internal error from Core")


def _meaning(error: grpc.aio.AioRpcError) -> DraftloopError:
    """The user's mistake, too much load, no time left, or a part that is gone."""
    text = error.details() or error.code().name
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        field, _, description = text.partition(": ")
        return InvalidInput.passed_on(field, description)
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return overloaded(error) or Unavailable(f"{text} (--max-message-bytes)")
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return SessionGone(text)
    if error.code() is grpc.StatusCode.INTERNAL:
        cut_off = any(sign in text for sign in CUT_OFF)
        return Disconnected(text) if cut_off else ServiceFailed(text)
    info = error_info(error)
    if info is not None and info.reason == "MISMATCH":
        return Mismatch(text)
    said_there = any(key == DETAILS_KEY for key, _ in error.trailing_metadata() or ())
    by_core = error.code() in BY_CORE and not said_there
    return Disconnected(text) if by_core else Unavailable(text)
