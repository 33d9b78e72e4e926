"""The public gRPC service: requests in, text out."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import grpc

from draftloop import __version__
from draftloop.deadline import Deadline
from draftloop.logprobs import TokenLogprobs
from draftloop.model_info import ModelInfo
from draftloop.request import check_length, check_token_counts, check_token_ids
from draftloop.rpc import convert
from draftloop.rpc.convert_generation import PHRASE_STORE, PLAIN_FIGURES, TIMINGS
from draftloop.rpc.fields import field_values
from draftloop.speculation import STRATEGIES
from draftloop.tree import TokenSource
from orchestrator.access import Caller, bearer_token
from orchestrator.figures import Piece
from orchestrator.front import Front, preparing
from orchestrator.loop import STOP, Generation
from orchestrator.unblocked import unblocked
from protos import generation_pb2 as pb
from protos import generation_pb2_grpc

SERVICE_NAME: str = pb.DESCRIPTOR.services_by_name["Generation"].full_name
register = generation_pb2_grpc.add_GenerationServicer_to_server

# Maximum values of the summary's fields. Figures that model services report may exceed them.
MAX_COUNT, MAX_NS = 2**32 - 1, 2**64 - 1


class GenerationServicer(generation_pb2_grpc.GenerationServicer):
    """Implements `draftloop.v1.Generation`."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._deployment = front.deployment

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Streams pieces; the last message holds the summary."""
        caller = self._begin(context)
        generation = await self._generation(request.parameters, context, caller)
        async with contextlib.aclosing(unblocked(self._run(generation, context, caller))) as pieces:
            first = True
            async for piece in pieces:
                prompt_logprobs = generation.prompt_logprobs if first else None
                first = False
                yield pb.GenerateResponse(
                    text=piece.text,
                    token_ids=piece.token_ids,
                    sources=piece.sources,  # type: ignore[arg-type]
                    logprobs=convert.logprobs_to_pb(piece.logprobs),
                    prompt_logprobs=convert.prompt_logprobs_to_pb(prompt_logprobs),
                )
        yield pb.GenerateResponse(summary=_summary(generation))

    async def GenerateOnce(
        self, request: pb.GenerateOnceRequest, context: grpc.aio.ServicerContext
    ) -> pb.GenerateOnceResponse:
        """Returns the whole text in one message."""
        caller = self._begin(context)
        generation = await self._generation(request.parameters, context, caller)
        texts: list[str] = []
        sources: list[TokenSource] = []
        logprobs: list[TokenLogprobs] = []
        async with contextlib.aclosing(self._run(generation, context, caller)) as pieces:
            async for piece in pieces:
                texts.append(piece.text)
                sources.extend(piece.sources)
                logprobs.extend(piece.logprobs)
        return pb.GenerateOnceResponse(
            text="".join(texts),
            token_ids=generation.output,
            sources=sources,  # type: ignore[arg-type]
            summary=_summary(generation),
            logprobs=convert.logprobs_to_pb(logprobs),
            prompt_logprobs=convert.prompt_logprobs_to_pb(generation.prompt_logprobs),
        )

    async def Tokenize(
        self, request: pb.TokenizeRequest, context: grpc.aio.ServicerContext
    ) -> pb.TokenizeResponse:
        """Text to token ids."""
        self._begin(context)
        token_ids = await self._deployment.tokenizer.encode_async(request.text)
        return pb.TokenizeResponse(token_ids=token_ids)

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: grpc.aio.ServicerContext
    ) -> pb.DetokenizeResponse:
        """Token ids to text."""
        self._begin(context)
        token_ids = list(request.token_ids)
        if token_ids:
            check_token_ids("token_ids", token_ids, self._deployment.verifier.vocabulary_size)
        return pb.DetokenizeResponse(text=await self._deployment.tokenizer.decode_async(token_ids))

    async def Info(
        self, request: pb.GenerationInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.GenerationInfoResponse:
        """Models, strategies, limits, and the state of the phrase store."""
        self._caller(context)
        deployment = self._deployment
        drafter = deployment.drafter
        return pb.GenerationInfoResponse(
            version=__version__,
            verifier=convert.model_info_to_pb(deployment.verifier),
            drafter=convert.model_info_to_pb(drafter) if drafter else None,
            strategies=STRATEGIES,
            default_strategy=deployment.settings.default_strategy,
            default_max_tokens=deployment.settings.default_token_limit(ends_itself=False),
            phrases=pb.PhraseStoreInfo(**field_values(deployment.store.info(), PHRASE_STORE)),
        )

    async def _run(
        self, generation: Generation, context: grpc.aio.ServicerContext, caller: Caller
    ) -> AsyncGenerator[Piece, None]:
        """Runs the generation, which stays admitted until it ends, not until it has been read."""
        headers = context.invocation_metadata() or ()
        front = self._front
        with front.admit(caller), front.serving(generation, headers, caller):
            # inside `serving`, which counts and logs how it ended
            async with front.shutdown.within(), contextlib.aclosing(generation.run()) as pieces:
                async for piece in pieces:
                    yield piece

    def _caller(self, context: grpc.aio.ServicerContext) -> Caller:
        metadata = dict(context.invocation_metadata() or ())
        return self._front.caller(bearer_token(metadata.get("authorization")))

    def _begin(self, context: grpc.aio.ServicerContext) -> Caller:
        """Identifies the caller and counts one request, before anything else is done for it."""
        caller = self._caller(context)
        self._front.count_requests(caller)
        return caller

    async def _generation(
        self,
        parameters: pb.GenerationParameters,
        context: grpc.aio.ServicerContext,
        caller: Caller,
    ) -> Generation:
        deadline = Deadline.after(context.time_remaining())
        async with preparing(deadline):
            _check_counts(parameters, self._deployment.verifier)
            requested = convert.parameters_from_pb(parameters)
            return await self._front.generation(requested, deadline, caller)


def _check_counts(parameters: pb.GenerationParameters, model: ModelInfo) -> None:
    """Raises InvalidInput for more token ids than fit, before millions of them are converted."""
    check_length("tokens.ids", len(parameters.tokens.ids), model.context_length)
    check_token_counts(
        model.vocabulary_size,
        logit_bias=parameters.sampling.logit_bias,
        stop_token_ids=parameters.stop_token_ids,
        allowed_token_ids=parameters.allowed_token_ids,
    )


def _summary(generation: Generation) -> pb.GenerationSummary:
    request, figures = generation.request, generation.figures
    stopped = generation.finish_reason == STOP
    reason = pb.FINISH_REASON_STOP if stopped else pb.FINISH_REASON_LENGTH
    return pb.GenerationSummary(
        request_id=request.request_id,
        finish_reason=reason,
        prompt_tokens=len(request.prompt),
        cached_prompt_tokens=generation.cached_prompt_tokens,
        output_tokens=generation.output_length,
        seed=request.sampling.seed,
        speculation=pb.SpeculationFigures(
            strategy=request.strategy,
            accepted_tokens_per_position=figures.accepted_per_position,
            sources=[
                pb.SourceFigures(
                    source=source,  # type: ignore[arg-type]
                    draft_tokens=figures.drafted_by_source[source],
                    accepted_tokens=figures.accepted_by_source[source],
                    proposed_tokens=min(proposed, MAX_COUNT),
                    expected_tokens=figures.expected_by_source[source],
                )
                for source, proposed in sorted(figures.proposed_by_source.items())
            ],
            ends=[
                pb.EndFigures(reason=end.name.lower(), rounds=rounds)
                for end, rounds in sorted(figures.ends.items())
            ],
            **_capped(MAX_COUNT, field_values(figures, PLAIN_FIGURES)),
        ),
        timings=pb.GenerationTimings(**_capped(MAX_NS, field_values(generation.timings, TIMINGS))),
    )


def _capped(maximum: int, numbers: Mapping[str, float]) -> dict[str, Any]:
    """The numbers, each capped at `maximum`."""
    return {name: min(number, maximum) for name, number in numbers.items()}
