"""A client of the public gRPC service, in our own types."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import grpc

from draftloop.errors import DraftloopError, InvalidInput, Overloaded, Unavailable
from draftloop.logprobs import TokenLogprobs
from draftloop.model_info import ModelInfo
from draftloop.request import GenerationParameters
from draftloop.rpc import convert
from draftloop.rpc.channel import open_channel
from draftloop.tree import TokenSource
from protos import generation_pb2 as pb
from protos import generation_pb2_grpc

MAX_MESSAGE_BYTES = 16 << 20
FINISH_REASONS = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFigures:
    """Nodes of one source: proposed, verified, accepted, and how many the estimates promised."""

    source: TokenSource
    proposed: int
    drafted: int
    accepted: int
    expected: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a generation did and cost; times in nanoseconds."""

    request_id: str
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    seed: int
    strategy: str
    rounds: int
    draft_tokens: int
    accepted_tokens: int
    tokens_per_round: float
    draft_forwards: int
    fallback_rounds: int
    reopened_sessions: int
    phrase_rounds: int
    sources: tuple[SourceFigures, ...]
    ends: dict[str, int]
    time_to_first_token_ns: int
    decode_ns: int
    draft_ns: int
    verify_ns: int
    draft_forward_ns: int
    verify_forward_ns: int
    wire_ns: int
    overhead_per_round_ns: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first, per second of decoding."""
        return (self.output_tokens - 1) / (self.decode_ns / 1e9) if self.decode_ns else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """New tokens, their sources and text; the last piece has the summary and nothing else."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    sources: tuple[TokenSource, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    summary: Summary | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentInfo:
    """What a deployment says of itself."""

    version: str
    verifier: ModelInfo
    drafter: ModelInfo | None
    strategies: tuple[str, ...]
    default_strategy: str
    default_max_tokens: int


class GenerationClient:
    """Use as an async context manager. Raises our own errors, never gRPC's."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = open_channel(address, MAX_MESSAGE_BYTES)
        self._stub = generation_pb2_grpc.GenerationStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self._channel.close()

    async def generate(self, parameters: GenerationParameters) -> AsyncIterator[Piece]:
        """Streams pieces; ending the iteration cancels the request."""
        request = pb.GenerateRequest(parameters=convert.parameters_to_pb(parameters))
        call = self._stub.Generate(request)
        try:
            async for response in call:
                yield _piece(response)
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None
        finally:
            call.cancel()

    async def detokenize(self, token_ids: list[int]) -> str:
        """Text of the tokens."""
        try:
            response = await self._stub.Detokenize(pb.DetokenizeRequest(token_ids=token_ids))
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None
        return str(response.text)

    async def info(self) -> DeploymentInfo:
        """Models, strategies and limits."""
        try:
            response = await self._stub.Info(pb.GenerationInfoRequest())
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None
        has_drafter = response.HasField("drafter")
        return DeploymentInfo(
            version=response.version,
            verifier=convert.model_info_from_pb(response.verifier),
            drafter=convert.model_info_from_pb(response.drafter) if has_drafter else None,
            strategies=tuple(response.strategies),
            default_strategy=response.default_strategy,
            default_max_tokens=response.default_max_tokens,
        )

    def _translated(self, error: grpc.aio.AioRpcError) -> DraftloopError:
        code, text = error.code(), error.details() or error.code().name
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            field, _, description = text.partition(": ")
            return InvalidInput.passed_on(field, description)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Overloaded(text.partition("; try again")[0])
        if code is grpc.StatusCode.UNAVAILABLE and "onnect" in text:
            return Unavailable(
                f"no server at {self._address}: start one with `draftloop up`, or name another "
                f"with --server"
            )
        return Unavailable(text)


def _piece(response: pb.GenerateResponse) -> Piece:
    return Piece(
        text=response.text,
        token_ids=tuple(response.token_ids),
        sources=tuple(TokenSource(source) for source in response.sources),
        logprobs=convert.logprobs_from_pb(response.logprobs),
        summary=_summary(response.summary) if response.HasField("summary") else None,
    )


def _summary(message: pb.GenerationSummary) -> Summary:
    figures, timings = message.speculation, message.timings
    return Summary(
        request_id=message.request_id,
        finish_reason=FINISH_REASONS.get(message.finish_reason, "unknown"),
        prompt_tokens=message.prompt_tokens,
        output_tokens=message.output_tokens,
        seed=message.seed,
        strategy=figures.strategy,
        rounds=figures.rounds,
        draft_tokens=figures.draft_tokens,
        accepted_tokens=figures.accepted_tokens,
        tokens_per_round=figures.tokens_per_round,
        draft_forwards=figures.draft_forwards,
        fallback_rounds=figures.fallback_rounds,
        reopened_sessions=figures.reopened_sessions,
        phrase_rounds=figures.phrase_rounds,
        sources=tuple(
            SourceFigures(
                source=TokenSource(part.source),
                proposed=part.proposed_tokens,
                drafted=part.draft_tokens,
                accepted=part.accepted_tokens,
                expected=part.expected_tokens,
            )
            for part in figures.sources
        ),
        ends={part.reason: part.rounds for part in figures.ends},
        time_to_first_token_ns=timings.time_to_first_token_ns,
        decode_ns=timings.decode_ns,
        draft_ns=timings.draft_ns,
        verify_ns=timings.verify_ns,
        draft_forward_ns=timings.draft_forward_ns,
        verify_forward_ns=timings.verify_forward_ns,
        wire_ns=timings.wire_ns,
        overhead_per_round_ns=timings.overhead_per_round_ns,
    )
