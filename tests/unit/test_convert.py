"""Values survive the wire unchanged; errors leave with their documented status."""

from __future__ import annotations

import dataclasses
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from hypothesis import given
from hypothesis import strategies as st

from draftloop import errors
from draftloop.bans import Bans
from draftloop.errors import InvalidInput
from draftloop.grammar import FORMATS, Grammar
from draftloop.logprobs import TokenLogprobs
from draftloop.request import NEVER_ZERO, SamplingParameters
from draftloop.rpc import convert
from draftloop.rpc.interceptors import to_status
from draftloop.tree import DraftTree, ServiceTimings, TokenSource, Verdict
from protos import generation_pb2
from protos import speculation_pb2 as pb

IDS = st.integers(0, 2**31 - 1)
SINGLE = st.floats(0.0, 1.0, width=32)


@st.composite
def trees(draw: Any) -> DraftTree:
    count = draw(st.integers(0, 12))
    return DraftTree(
        token_ids=tuple(draw(st.lists(IDS, min_size=count, max_size=count))),
        parents=tuple(draw(st.integers(-1, node - 1)) for node in range(count)),
        estimates=tuple(draw(st.lists(SINGLE, min_size=count, max_size=count))),
        sources=tuple(draw(st.sampled_from(TokenSource)) for _ in range(count)),
    )


def over_the_wire(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


@given(trees())
def test_trees_round_trip(tree: DraftTree) -> None:
    assert convert.tree_from_pb(over_the_wire(convert.tree_to_pb(tree))) == tree


@given(st.lists(IDS), st.lists(IDS), IDS, st.lists(IDS), st.booleans())
def test_verdicts_round_trip(
    accepted: list[int], emitted: list[int], root: int, predictions: list[int], stopped: bool
) -> None:
    verdict = Verdict(tuple(accepted), tuple(emitted), root, tuple(predictions), stopped)
    assert convert.verdict_from_pb(over_the_wire(convert.verdict_to_pb(verdict))) == verdict


def test_drafter_receives_only_the_verdict_fields_it_reads() -> None:
    """Eight successors per node are most of a verdict, and drafting does not use them."""
    logprobs = (TokenLogprobs(3, -0.5, ((3, -0.5),)),)
    verdict = Verdict((0,), (3, 4), 3, (4,), False)
    full = dataclasses.replace(verdict, successor_ids=(7, 8), logprobs=logprobs)
    assert convert.verdict_from_pb(over_the_wire(convert.judgement_to_pb(full))) == verdict
    received = convert.verdict_from_pb(over_the_wire(convert.verdict_to_pb(full)))
    assert received.successor_ids == (7, 8)
    assert received.logprobs == full.logprobs


def test_log_probabilities_without_their_tokens_are_refused() -> None:
    uneven = pb.Verdict(logprobs=[pb.TokenLogprobs(top_token_ids=[1, 2], top_logprobs=[-0.5])])
    with pytest.raises(errors.InvalidInput) as caught:
        convert.verdict_from_pb(uneven)
    rule = "must have one entry for each of 2 top_token_ids; got '1 entries'"
    assert str(caught.value) == f"logprobs.top_logprobs: {rule}"


GRAMMARS = [None, *(Grammar(way, "x") for way in FORMATS)]


@given(SINGLE, IDS, st.dictionaries(IDS, SINGLE, max_size=4), st.sampled_from(GRAMMARS),
       st.integers(0, 2**64 - 1))  # fmt: skip
def test_sampling_parameters_round_trip(
    temperature: float, top_k: int, bias: dict[int, float], grammar: Grammar | None, seed: int
) -> None:
    parameters = SamplingParameters(
        temperature=temperature,
        top_k=top_k,
        top_p=0.5,
        repetition_penalty=1.25,
        logit_bias=tuple(sorted(bias.items())),
        grammar=grammar,
        seed=seed,
    )
    assert convert.sampling_from_pb(over_the_wire(convert.sampling_to_pb(parameters))) == parameters


def test_unset_filters_are_off() -> None:
    assert convert.sampling_from_pb(pb.SamplingParameters()) == SamplingParameters()


@pytest.mark.parametrize("name", NEVER_ZERO)
def test_explicit_zero_filter_is_refused(name: str) -> None:
    """An explicit 0 is refused. It used to switch the filter off."""
    fields: dict[str, Any] = {name: 0.0}
    message = over_the_wire(pb.SamplingParameters(**fields))
    with pytest.raises(errors.InvalidInput, match=f"{name}: must be above 0"):
        convert.sampling_from_pb(message).validate(8)


def test_bans_round_trip() -> None:
    bans = Bans(allowed=(1, 2, 3), sequences=((4,), (5, 6)), min_tokens=7, ends=(8, 9))
    message = over_the_wire(convert.sampling_to_pb(SamplingParameters(bans=bans)))
    assert convert.sampling_from_pb(message).bans == bans


@pytest.mark.parametrize(
    ("field", "sampling", "speculation"),
    [
        ("bans.sequences", {"bans": {"sequences": [{}] * 513}}, {}),
        ("cascade.matrix", {}, {"cascade": {"matrix": [{}] * 65}}),
        ("cascade.matrix", {}, {"cascade": {"matrix": [{"tokens": [0] * 65}]}}),
    ],
)
def test_too_many_parts_are_refused_before_conversion(
    field: str, sampling: dict[str, Any], speculation: dict[str, Any]
) -> None:
    """Sixteen megabytes of empty parts used to block all streams of an orchestrator for seconds."""
    parameters = generation_pb2.GenerationParameters(sampling=sampling, speculation=speculation)
    with pytest.raises(InvalidInput) as caught:
        convert.parameters_from_pb(parameters)
    assert caught.value.field == field


def test_timings_round_trip() -> None:
    timings = ServiceTimings(
        service_ns=9, forward_ns=8, queue_ns=7, forwards=6, batch_size=5, batch_rows=4, waiting=3,
        prompt_rows=2, prompts=11, prompts_ns=1,
    )  # fmt: skip
    assert convert.timings_from_pb(over_the_wire(convert.timings_to_pb(timings))) == timings


def test_unknown_token_source_is_refused() -> None:
    message = pb.DraftTree(
        token_ids=[1], parents=[-1], estimates=[0.5], sources=["TOKEN_SOURCE_UNSPECIFIED"]
    )
    with pytest.raises(errors.InvalidInput, match="sources"):
        convert.tree_from_pb(message)


@pytest.mark.parametrize(
    ("error", "code", "detail"),
    [
        (errors.InvalidInput("f", "must be", 1), grpc.StatusCode.INVALID_ARGUMENT, BadRequest),
        (errors.Overloaded("full"), grpc.StatusCode.RESOURCE_EXHAUSTED, RetryInfo),
        (errors.Unavailable("gone"), grpc.StatusCode.UNAVAILABLE, RetryInfo),
        (errors.SessionLost("idle"), grpc.StatusCode.NOT_FOUND, ErrorInfo),
        (errors.Mismatch("two"), grpc.StatusCode.FAILED_PRECONDITION, ErrorInfo),
    ],
)
def test_errors_map_to_their_status(
    error: errors.DraftloopError, code: grpc.StatusCode, detail: type[Any]
) -> None:
    status, message = to_status(error)
    assert status is code and isinstance(message, detail)


def test_stale_session_error_carries_the_committed_length() -> None:
    status, message = to_status(errors.StaleSession(assumed=3, actual=7))
    assert status is grpc.StatusCode.FAILED_PRECONDITION
    assert isinstance(message, ErrorInfo) and message.metadata["committed_length"] == "7"
