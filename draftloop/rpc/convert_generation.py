"""Converts answers of the public service to our own types."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from draftloop.completion import (
    Completion,
    DeploymentInfo,
    Figures,
    Piece,
    SourceFigures,
    Summary,
    Timings,
    Usage,
)
from draftloop.errors import Mismatch
from draftloop.phrase_store_info import PhraseStoreInfo
from draftloop.rpc.convert import (
    logprobs_from_pb,
    model_info_from_pb,
    prompt_logprobs_from_pb,
)
from draftloop.rpc.fields import field_names, field_values
from draftloop.tree import TokenSource
from protos import generation_pb2 as pb

# Fields with the same name in the message, our own type and the orchestrator's figures.
TIMINGS = field_names(Timings)
PLAIN_FIGURES = field_names(
    Figures, exclude=["strategy", "accepted_per_position", "sources", "ends"]
)
PHRASE_STORE = field_names(PhraseStoreInfo)
FINISH_REASONS = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


def piece_from_pb(message: pb.GenerateResponse) -> Piece:
    """New tokens and their text. Raises Mismatch for a token source unknown to this client."""
    return Piece(
        text=message.text,
        token_ids=tuple(message.token_ids),
        sources=_sources(message.sources),
        logprobs=logprobs_from_pb(message.logprobs),
        prompt_logprobs=prompt_logprobs_from_pb(message),
    )


def completion_from_pb(message: pb.GenerateOnceResponse) -> Completion:
    """A whole generation. Raises Mismatch for a token source unknown to this client."""
    summary = summary_from_pb(message.summary)
    shared = {field.name: getattr(summary, field.name) for field in dataclasses.fields(summary)}
    return Completion(
        text=message.text,
        token_ids=tuple(message.token_ids),
        sources=_sources(message.sources),
        logprobs=logprobs_from_pb(message.logprobs),
        prompt_logprobs=prompt_logprobs_from_pb(message),
        **shared,
    )


def summary_from_pb(message: pb.GenerationSummary) -> Summary:
    """How the generation ended and what it cost.

    Raises Mismatch for a token source unknown to this client.
    """
    return Summary(
        request_id=message.request_id,
        finish_reason=FINISH_REASONS.get(message.finish_reason, "unknown"),
        seed=message.seed,
        usage=Usage(
            prompt_tokens=message.prompt_tokens,
            completion_tokens=message.output_tokens,
            cached_tokens=message.cached_prompt_tokens,
        ),
        figures=_figures(message.speculation),
        timings=Timings(**field_values(message.timings, TIMINGS)),
    )


def deployment_from_pb(message: pb.GenerationInfoResponse) -> DeploymentInfo:
    """The deployment's description of itself."""
    return DeploymentInfo(
        version=message.version,
        verifier=model_info_from_pb(message.verifier),
        drafter=model_info_from_pb(message.drafter) if message.HasField("drafter") else None,
        strategies=tuple(message.strategies),
        default_strategy=message.default_strategy,
        default_max_tokens=message.default_max_tokens,
        phrases=_phrase_store(message.phrases) if message.HasField("phrases") else None,
    )


def _phrase_store(message: pb.PhraseStoreInfo) -> PhraseStoreInfo:
    return PhraseStoreInfo(**field_values(message, PHRASE_STORE))


def _figures(message: pb.SpeculationFigures) -> Figures:
    sources = _sources(part.source for part in message.sources)
    return Figures(
        strategy=message.strategy,
        accepted_per_position=tuple(message.accepted_tokens_per_position),
        sources=tuple(
            SourceFigures(
                source=source,
                proposed=part.proposed_tokens,
                drafted=part.draft_tokens,
                accepted=part.accepted_tokens,
                expected=part.expected_tokens,
            )
            for source, part in zip(sources, message.sources, strict=True)
        ),
        ends={part.reason: part.rounds for part in message.ends},
        **field_values(message, PLAIN_FIGURES),
    )


def _sources(values: Iterable[int]) -> tuple[TokenSource, ...]:
    try:
        return tuple(TokenSource(value) for value in values)
    except ValueError as error:
        raise Mismatch(f"the server is newer than this client ({error}): update it") from None
