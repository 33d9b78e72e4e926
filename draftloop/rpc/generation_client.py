"""Single calls of the public service, in our own types; users call `draftloop.client`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import grpc
from google.protobuf.message import Message

from draftloop.bearer import bearer
from draftloop.completion import Completion, DeploymentInfo, Piece, Summary
from draftloop.errors import DraftloopError, InvalidInput, Unavailable
from draftloop.request import GenerationParameters
from draftloop.rpc import convert, convert_generation
from draftloop.rpc.channel import NO_LIMIT, open_channel
from draftloop.rpc.status import to_error
from draftloop.tls import ClientTls
from protos import generation_pb2 as pb
from protos import generation_pb2_grpc

CLOSED = "the client is closed"
Metadata = tuple[tuple[str, str], ...]


class Wire:
    """A channel that is opened at the first call; once closed, it stays closed."""

    def __init__(self, address: str, tls: ClientTls | None) -> None:
        self._address = address
        self._tls = tls
        self._channel: grpc.aio.Channel | None = None
        self._closed = asyncio.Event()

    @property
    def stub(self) -> generation_pb2_grpc.GenerationStub:
        """Stub of the public service. Raises DraftloopError once the wire was closed."""
        if self._closed.is_set():
            raise DraftloopError(CLOSED)
        if self._channel is None:
            asyncio.get_running_loop()  # a channel made outside would belong to another loop
            self._channel = open_channel(self._address, NO_LIMIT, self._tls)
        return generation_pb2_grpc.GenerationStub(self._channel)

    async def close(self) -> None:
        """Ends running calls, and waits between attempts."""
        self._closed.set()
        if self._channel is not None:
            await self._channel.close()

    async def wait_closed(self) -> None:
        """Waits until the wire is closed."""
        await self._closed.wait()

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Translates gRPC's errors to ours, including that of a call which `close` has ended.

        gRPC reports such a call as cancelled. If the calling task itself was cancelled,
        asyncio.CancelledError is passed on.
        """
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise to_error(error, self._address) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._closed.is_set() or (task and task.cancelling()):
                raise
            raise DraftloopError(CLOSED) from None


class PieceCall:
    """One running Generate call."""

    def __init__(self, call: Any, wire: Wire) -> None:
        self._call = call
        self._wire = wire

    async def read(self) -> Piece | Summary:
        """The next piece, or the summary after the last one; do not read after the summary.

        Raises our own errors, never gRPC's; asyncio.CancelledError after `cancel`.
        """
        with self._wire.translated_errors():
            response = await self._call.read()
            if response is grpc.aio.EOF:
                raise Unavailable("the server ended the stream before its summary", 0)
            if not response.HasField("summary"):
                return convert_generation.piece_from_pb(response)
            await self._call.read()  # the status: a stream not read to its end counts as cancelled
            return convert_generation.summary_from_pb(response.summary)

    def cancel(self) -> None:
        """Tells the server to stop; does nothing if the call has ended."""
        self._call.cancel()


class GenerationClient:
    """A client that connects at its first call and belongs to the event loop of that call.

    Every call raises our own errors, never gRPC's. `timeout_s` bounds a call; None does not. Once
    the client was closed, all calls raise DraftloopError, including those that were waiting.
    """

    def __init__(
        self, address: str, api_key: str | None = None, tls: ClientTls | None = None
    ) -> None:
        self._wire = Wire(address, tls)
        self._metadata: Metadata = ()
        if api_key is not None:
            self._metadata = (("authorization", bearer(api_key)),)

    async def close(self) -> None:
        """Ends running calls; see Wire.close."""
        await self._wire.close()

    async def pause(self, seconds: float) -> None:
        """Waits between two attempts; `close` ends the wait early."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wire.wait_closed(), seconds)

    def stream(self, parameters: GenerationParameters, timeout_s: float | None) -> PieceCall:
        """Starts a generation whose answer is read in pieces."""
        request = pb.GenerateRequest(parameters=_parameters(parameters))
        call = self._wire.stub.Generate(request, timeout=timeout_s, metadata=self._metadata)
        return PieceCall(call, self._wire)

    async def generate(
        self, parameters: GenerationParameters, timeout_s: float | None
    ) -> Completion:
        """The whole generation as one answer."""
        request = pb.GenerateOnceRequest(parameters=_parameters(parameters))
        answer = await self._ask(self._wire.stub.GenerateOnce, request, timeout_s)
        return convert_generation.completion_from_pb(answer)

    async def tokenize(self, text: str, timeout_s: float | None) -> tuple[int, ...]:
        """Token ids of the text."""
        request = pb.TokenizeRequest(text=text)
        return tuple((await self._ask(self._wire.stub.Tokenize, request, timeout_s)).token_ids)

    async def detokenize(self, token_ids: Sequence[int], timeout_s: float | None) -> str:
        """Text of the tokens."""
        request = pb.DetokenizeRequest(token_ids=token_ids)
        return str((await self._ask(self._wire.stub.Detokenize, request, timeout_s)).text)

    async def info(self, timeout_s: float | None) -> DeploymentInfo:
        """Models, strategies and limits."""
        answer = await self._ask(self._wire.stub.Info, pb.GenerationInfoRequest(), timeout_s)
        return convert_generation.deployment_from_pb(answer)

    async def _ask(self, method: Any, request: Message, timeout_s: float | None) -> Any:
        with self._wire.translated_errors():
            return await method(request, timeout=timeout_s, metadata=self._metadata)


def _parameters(parameters: GenerationParameters) -> pb.GenerationParameters:
    try:
        return convert.parameters_to_pb(parameters)
    except (TypeError, ValueError) as error:  # from inside protobuf, which names no field
        raise InvalidInput.from_description(
            "parameters", f"the wire cannot carry them: {error}"
        ) from None
