"""No field is forgotten on the wire: each is set unlike its default and comes back."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.message import Message

from draftloop.bans import Bans
from draftloop.grammar import Grammar
from draftloop.load import ServiceLoad
from draftloop.logprobs import PromptLogprobs, TokenLogprobs
from draftloop.lookahead import LookaheadParameters
from draftloop.model_info import CostPoint, ModelInfo
from draftloop.phrase import PhraseAccess, PhraseScope
from draftloop.phrase_store_info import PhraseStoreInfo
from draftloop.request import GenerationParameters, SamplingParameters
from draftloop.rpc import convert, convert_generation, convert_speculation
from draftloop.rpc.fields import field_names, field_values
from draftloop.rpc.sessions import opening_fields
from draftloop.runtime.sessions import Opening
from draftloop.speculation import (
    CascadeParameters,
    FusedParameters,
    OptTreeParameters,
    OuroborosParameters,
    Speculation,
)
from draftloop.tree import DraftEnd, DraftTree, ServiceTimings, TokenSource, Verdict
from orchestrator import servicer
from orchestrator.figures import SpeculationFigures, Timings
from protos import generation_pb2 as pb
from protos.drafter_pb2 import OpenDrafterSession
from protos.verifier_pb2 import OpenVerifierSession, VerifyResponse

TREE = DraftTree((5, 6), (-1, 0), (0.5, 0.25), (TokenSource.PHRASE, TokenSource.DRAFT_MODEL))
LOGPROBS = TokenLogprobs(3, -0.5, ((3, -0.5), (4, -1.0)))
VERDICT = Verdict(
    accepted_nodes=(1,),
    emitted_token_ids=(7, 8),
    root_prediction=9,
    node_predictions=(10, 11),
    stopped=True,
    successor_ids=(12, 13),
    logprobs=(LOGPROBS,),
)
TIMINGS = ServiceTimings(
    service_ns=1, forward_ns=2, queue_ns=3, forwards=4, batch_size=5, batch_rows=6, waiting=7,
    prompt_rows=8, prompts=9, prompts_ns=10, cached_tokens=11,
)  # fmt: skip
LOAD = ServiceLoad(running_sessions=1, waiting_sessions=2, answer_ns=3, forwards=4)
INFO = ModelInfo(
    model_name="name", model_fingerprint="model", vocabulary_fingerprint="vocabulary",
    vocabulary_size=1, context_length=2, parameters=3, dtype="float16", device="cuda:0",
    max_sessions=4, max_draft_nodes=5, instance_id="one", quantization="int8",
    tensor_parallel_size=6, cost_inflation="6:2", prefix_caching=True, strategies=("fused",),
    stop_token_ids=(7, 8), cost_curve=(CostPoint(9, 10, 11, 12), CostPoint(13, 14, 15, 16)),
    protocol_version=17, processor="here",
)  # fmt: skip
PHRASES = PhraseStoreInfo(
    kind="redis", namespaces=1, unreachable_namespaces=2, replaying_namespaces=3,
    most_namespaces=4, records_read=5, entries=6, bytes=7, most_namespace_bytes=8,
)  # fmt: skip
PROMPT = PromptLogprobs(
    count=2, logprobs=[-0.5], ranks=[3], top_token_ids=[4, 5], top_logprobs=[-0.25, -0.75]
)
SAMPLING = SamplingParameters(
    temperature=0.5,
    top_k=1,
    top_p=0.25,
    min_p=0.125,
    repetition_penalty=1.25,
    presence_penalty=0.75,
    frequency_penalty=-0.5,
    logit_bias=((1, -1.0), (2, 1.0)),
    bans=Bans(allowed=(1, 2), sequences=((3, 4), (5,)), min_tokens=6, ends=(7,)),
    grammar=Grammar("regex", "a+"),
    seed=2**64 - 1,
)
LOOKAHEAD = LookaheadParameters(window=1, ngram=2, candidates=3, pool_size=4)
SPECULATION = Speculation(
    strategy="lookahead",
    max_draft_tokens=1,
    phrases=PhraseScope.OFF,
    lookahead=LOOKAHEAD,
    ouroboros=OuroborosParameters(
        draft_by_phrases=False, lengthen=False, harvest=False, history=False, phrases_alone=False,
        lengthening_phrases=5, lookahead=LOOKAHEAD,
    ),
    opt_tree=OptTreeParameters(nodes=6, delta=0.5, depth=7),
    cascade=CascadeParameters(matrix=((1, 2), (0, 3)), leniency=1.5),
    fused=FusedParameters(draft_model=False, phrases=False, own_text=False, recycling=False),
)  # fmt: skip
PARAMETERS = GenerationParameters(
    text="text", sampling=SAMPLING, seed=SAMPLING.seed, max_tokens=1, min_tokens=2,
    stop=("a", "b"), stop_token_ids=(3, 4), ignore_eos=True, allowed_token_ids=(5, 6),
    bad_words=("c",), speculation=SPECULATION, request_id="id", tenant="tenant", logprobs=7,
    prompt_logprobs=8, prediction="prediction", cache_salt="salt",
)  # fmt: skip
ACCESS = PhraseAccess(
    scope=PhraseScope.PRIVATE, target_fingerprint="target", tenant="tenant", origin=1
)


def prompt_logprobs_response(logprobs: PromptLogprobs) -> VerifyResponse:
    return VerifyResponse(prompt_logprobs=convert.prompt_logprobs_to_pb(logprobs))


EVERY = [
    (TREE, convert.tree_to_pb, convert.tree_from_pb),
    (VERDICT, convert.verdict_to_pb, convert.verdict_from_pb),
    (TIMINGS, convert.timings_to_pb, convert.timings_from_pb),
    (LOAD, convert.load_to_pb, convert.load_from_pb),
    (INFO, convert.model_info_to_pb, convert.model_info_from_pb),
    (PROMPT, prompt_logprobs_response, convert.prompt_logprobs_from_pb),
    (SAMPLING, convert.sampling_to_pb, convert.sampling_from_pb),
    (SPECULATION, convert_speculation.speculation_to_pb, convert_speculation.speculation_from_pb),
    (ACCESS, convert_speculation.access_to_pb, convert_speculation.access_from_pb),
    (PARAMETERS, convert.parameters_to_pb, convert.parameters_from_pb),
]
# The other way to give the prompt, and a field that only chats over HTTP set.
UNSET_FIELDS = {"GenerationParameters.token_ids", "GenerationParameters.ends_itself"}


def over_the_wire(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


def default_fields(value: Any) -> Iterator[str]:
    """Names of the fields, nested ones too, that still have their defaults."""
    if isinstance(value, tuple | list):
        for part in value:
            yield from default_fields(part)
    if not dataclasses.is_dataclass(value):
        return
    for field in dataclasses.fields(value):
        field_value = getattr(value, field.name)
        if field_value == _default(field, field_value):
            yield f"{type(value).__name__}.{field.name}"
        yield from default_fields(field_value)


def _default(field: dataclasses.Field[Any], value: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return next((zero for zero in (0, "", ()) if value == zero), None)


def unset_fields(message: Message) -> Iterator[str]:
    """Names of the message's fields, nested ones too, that are not set."""
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is None:
            if not value:
                yield f"{message.DESCRIPTOR.name}.{field.name}"
            continue
        for part in [value] if isinstance(value, Message) else value:
            yield from unset_fields(part)


@pytest.mark.parametrize(("value", "to_pb", "from_pb"), EVERY, ids=lambda v: type(v).__name__)
def test_every_field_round_trips(value: Any, to_pb: Any, from_pb: Any) -> None:
    assert set(default_fields(value)) <= UNSET_FIELDS
    assert from_pb(over_the_wire(to_pb(value))) == value


def test_token_prompt_round_trips() -> None:
    value = GenerationParameters(token_ids=(1, 2))
    assert convert.parameters_from_pb(over_the_wire(convert.parameters_to_pb(value))) == value


@pytest.mark.parametrize("kind", [OpenDrafterSession, OpenVerifierSession])
def test_every_field_of_an_opening_is_converted(kind: type[Any]) -> None:
    opening = Opening(
        session_id="id", token_ids=(1, 2), prompt_length=1, sampling=SAMPLING,
        stop_token_ids=frozenset({3}), prefix_group="one", prefix_read_only=True,
    )  # fmt: skip
    assert list(default_fields(opening)) == []
    values = {field.name: getattr(opening, field.name) for field in dataclasses.fields(opening)}
    message = kind(**{**values, "sampling": convert.sampling_to_pb(SAMPLING)})
    assert Opening(**opening_fields(over_the_wire(message))) == opening


def generation_response(**fields: Any) -> pb.GenerateOnceResponse:
    return pb.GenerateOnceResponse(
        text="text",
        token_ids=[1],
        sources=TREE.sources[:1],  # type: ignore[arg-type]
        logprobs=convert.logprobs_to_pb([LOGPROBS]),
        prompt_logprobs=convert.prompt_logprobs_to_pb(PROMPT),
        **fields,
    )


def test_every_field_of_a_response_is_read() -> None:
    response = generation_response()
    fields = {field.name: getattr(response, field.name) for field, _ in response.ListFields()}
    piece = convert_generation.piece_from_pb(over_the_wire(pb.GenerateResponse(**fields)))
    assert list(default_fields(piece)) == []
    model = convert.model_info_to_pb(INFO)
    deployment = convert_generation.deployment_from_pb(
        pb.GenerationInfoResponse(
            version="1", verifier=model, drafter=model, strategies=["fused"],
            default_strategy="fused", default_max_tokens=2,
            phrases=pb.PhraseStoreInfo(**field_values(PHRASES, field_names(PhraseStoreInfo))),
        )
    )  # fmt: skip
    assert list(default_fields(deployment)) == [] and deployment.phrases == PHRASES


def test_every_figure_of_a_summary_is_converted() -> None:
    source = TokenSource.PHRASE
    figures = SpeculationFigures(
        rounds=1, draft_tokens=2, accepted_tokens=3, round_tokens=4, draft_forwards=5,
        fallback_rounds=6, phrase_rounds=7, reopened_sessions=8, accepted_per_position=[9, 10],
        drafted_by_source=Counter({source: 11}), accepted_by_source=Counter({source: 12}),
        proposed_by_source=Counter({source: 13}), ends=Counter({DraftEnd.TEXT: 15}),
        expected_by_source=defaultdict(float, {source: 14.0}),
    )  # fmt: skip
    timings = Timings(
        time_to_first_token_ns=1, decode_ns=2, draft_ns=3, verify_ns=4, draft_forward_ns=5,
        verify_forward_ns=6, wire_ns=7, overheads_ns=[8],
    )  # fmt: skip
    assert [*default_fields(figures), *default_fields(timings)] == []
    request = SimpleNamespace(
        request_id="id", prompt=(1, 2), strategy="fused", sampling=SimpleNamespace(seed=3)
    )
    generation: Any = SimpleNamespace(
        request=request, figures=figures, timings=timings, finish_reason="length",
        cached_prompt_tokens=4, output=[5, 6, 7], output_length=3,
    )  # fmt: skip
    message = over_the_wire(servicer._summary(generation))
    assert list(unset_fields(message)) == []
    summary = convert_generation.summary_from_pb(message)
    assert list(default_fields(summary)) == []
    assert (
        list(
            default_fields(
                convert_generation.completion_from_pb(generation_response(summary=message))
            )
        )
        == []
    )
    assert dataclasses.asdict(summary) == {
        "request_id": "id",
        "finish_reason": "length",
        "seed": 3,
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "cached_tokens": 4},
        "figures": {
            "strategy": "fused", "rounds": 1, "draft_tokens": 2, "accepted_tokens": 3,
            "accepted_per_position": (9, 10), "tokens_per_round": 4.0, "draft_forwards": 5,
            "fallback_rounds": 6, "reopened_sessions": 8, "phrase_rounds": 7,
            "sources": ({
                "source": source, "proposed": 13, "drafted": 11, "accepted": 12, "expected": 14.0,
            },),
            "ends": {"text": 15},
        },
        "timings": {
            "time_to_first_token_ns": 1, "decode_ns": 2, "draft_ns": 3, "verify_ns": 4,
            "draft_forward_ns": 5, "verify_forward_ns": 6, "wire_ns": 7, "overhead_per_round_ns": 8,
        },
    }  # fmt: skip
