"""The drafter alone: drafts, session state, refused messages, freed slots."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from draftloop.rpc import convert
from draftloop.tree import DraftTree, TokenSource, Verdict
from protos import drafter_pb2
from protos.drafter_pb2 import PhraseAccess
from protos.drafter_pb2_grpc import DrafterStub
from protos.speculation_pb2 import (
    PHRASE_SCOPE_OFF,
    PHRASE_SCOPE_PRIVATE,
    OptTreeParameters,
    OuroborosParameters,
)
from protos.verifier_pb2_grpc import VerifierStub
from tests.service.conftest import Served, Start
from tests.service.sessions import (
    PROMPT,
    BadRequest,
    ErrorInfo,
    open_drafter,
    open_verifier,
    propose,
    sampling,
    send_and_read,
    verify,
    wait_until_slots_free,
)
from tests.support.rich_errors import detail
from tests.support.waiting import eventually

LENGTH = len(PROMPT)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
async def test_drafts_of_a_model_equal_to_the_target_are_all_accepted(
    serve_drafter: Start, serve_verifier: Start, temperature: float
) -> None:
    """With equal models and shared noise every draft is accepted whole, round after round.

    Guards the positions, keys and values kept across rounds, and the noise of both services.
    """
    options: dict[str, Any] = {"sampling": sampling(temperature=temperature)}
    equal_drafter = serve_drafter(draft_temperature=1)  # the target's own temperature
    async with equal_drafter as (drafter_channel, _), serve_verifier() as (verifier_channel, _):
        drafter, verifier = (
            DrafterStub(drafter_channel).Draft(),
            VerifierStub(verifier_channel).Verify(),
        )
        await send_and_read(drafter, open_drafter(**options))
        committed = list(PROMPT)
        new = list(
            (await send_and_read(verifier, open_verifier(**options))).verdict.emitted_token_ids
        )
        for round_number in range(8):
            committed += new
            nodes = 1 + round_number % 5
            draft = (await send_and_read(drafter, propose(len(committed), new, nodes))).draft
            assert len(draft.token_ids) == nodes
            answer = await send_and_read(
                verifier, verify(len(committed), draft.token_ids, draft.parents)
            )
            assert len(answer.verdict.accepted_nodes) == nodes
            new = list(answer.verdict.emitted_token_ids)
        drafter.cancel()
        verifier.cancel()


async def test_session_recovers_from_rejected_drafts(serve_drafter: Start) -> None:
    """After any committed tokens, the draft is that of a new session with the same text."""
    async with serve_drafter() as (channel, host):
        stub = DrafterStub(channel)
        call = stub.Draft()
        await send_and_read(call, open_drafter())
        committed = list(PROMPT)
        new: list[int] = []
        for round_number in range(5):
            answer = await send_and_read(call, propose(len(committed), new, 5))
            fresh = stub.Draft()
            await send_and_read(fresh, open_drafter(committed))
            expected = await send_and_read(fresh, propose(len(committed), (), 5))
            fresh.cancel()
            assert answer.draft.token_ids == expected.draft.token_ids
            new = [*answer.draft.token_ids[:round_number], 50 + round_number]
            committed += new
        call.cancel()
        await wait_until_slots_free(host)


async def test_drafting_ahead_does_not_change_the_draft(
    serve_drafter: Start,
) -> None:
    """The draft is that of a new session with the same text, although drafting went on."""
    async with serve_drafter(draft_ahead="on") as (channel, host):
        stub, before = DrafterStub(channel), host.engine.forwards
        call = stub.Draft()
        await send_and_read(call, open_drafter(strategy="fused"))
        answer = await send_and_read(call, propose(LENGTH, (), 6))
        await eventually(
            lambda: host.engine.forwards - before > 1 + answer.timings.forwards  # 1: the prompt's
        )
        committed, new = list(PROMPT), [5]
        for round_number in range(6):
            committed += new
            answer = await send_and_read(call, propose(len(committed), new, 6))
            fresh = stub.Draft()
            await send_and_read(fresh, open_drafter(committed, strategy="fused"))
            expected = await send_and_read(fresh, propose(len(committed), (), 6))
            fresh.cancel()
            assert answer.draft.token_ids == expected.draft.token_ids
            assert answer.draft.parents == expected.draft.parents
            under_root = [
                token
                for token, parent in zip(answer.draft.token_ids, answer.draft.parents, strict=True)
                if parent == -1
            ]
            new = [under_root[round_number % len(under_root)]]
        call.cancel()
        await wait_until_slots_free(host)


@pytest.mark.parametrize("strategy", ["speculative", "fused", "cascade"])
async def test_prompt_is_prefilled_when_a_session_opens(
    serve_drafter: Start, strategy: str
) -> None:
    """Otherwise the first draft would be late by the time of the whole prompt."""
    async with serve_drafter() as (channel, host):
        call, before = DrafterStub(channel).Draft(), host.engine.forwards
        await send_and_read(call, open_drafter(strategy=strategy))
        assert host.engine.forwards > before
        answer = await send_and_read(call, propose(LENGTH + 1, [5], 1))
        assert host.engine.forwards - before == 1 + answer.timings.forwards
        call.cancel()


async def test_opening_is_answered_after_the_prefill(serve_drafter: Start) -> None:
    async with serve_drafter() as (channel, host):
        call = DrafterStub(channel).Draft()
        ready = await send_and_read(call, open_drafter())
        assert (ready.committed_length, ready.HasField("draft")) == (LENGTH, False)
        assert ready.load.running_sessions == 1 and host.engine.forwards > 0
        draft = await send_and_read(call, propose(LENGTH, (), 4))
        assert draft.committed_length == LENGTH and len(draft.draft.token_ids) == 4
        call.cancel()
        await wait_until_slots_free(host)


async def test_repeated_proposal_gets_the_same_draft(serve_drafter: Start) -> None:
    async with serve_drafter() as (channel, _):
        call = DrafterStub(channel).Draft()
        await send_and_read(call, open_drafter())
        first = await send_and_read(call, propose(LENGTH + 1, [5]))
        assert await send_and_read(call, propose(LENGTH + 1, [5])) == first
        call.cancel()


@pytest.mark.parametrize("strategy", ["speculative", "ouroboros"])
async def test_drafting_stops_when_it_does_not_pay(serve_drafter: Start, strategy: str) -> None:
    """Guards the path of the prices from the request to the strategy; they were lost once."""
    async with serve_drafter() as (channel, _):
        call: Any = DrafterStub(channel).Draft()
        await send_and_read(call, open_drafter(strategy=strategy))
        expensive: dict[str, Any] = {"tokens_per_second": 1e9, "least_path_probability": 1.0}
        answer = await send_and_read(call, propose(LENGTH + 1, [5], 8, **expensive))
        assert answer.timings.forwards == 1
        answer = await send_and_read(call, propose(LENGTH + 2, [6], 8))
        assert answer.timings.forwards > 1 or len(answer.draft.token_ids) > 1
        call.cancel()


@pytest.mark.parametrize("strategy", ["opt_tree", "fused"])
async def test_draft_reports_why_it_ended_and_what_it_left_out(
    serve_drafter: Start, strategy: str
) -> None:
    async with serve_drafter() as (channel, _):
        call: Any = DrafterStub(channel).Draft()
        await send_and_read(call, open_drafter(strategy=strategy))
        answer = await send_and_read(call, propose(LENGTH + 1, [5], 6))
        assert len(answer.draft.token_ids) == 6 < answer.proposed_nodes
        assert answer.end in (drafter_pb2.DRAFT_END_NODES, drafter_pb2.DRAFT_END_DEPTH)
        expensive: dict[str, Any] = {"tokens_per_second": 1e9}
        answer = await send_and_read(call, propose(LENGTH + 2, [6], 6, **expensive))
        assert answer.end == drafter_pb2.DRAFT_END_DRAFT_COST
        call.cancel()


async def test_offer_is_reviewed_in_the_first_forward(serve_drafter: Start) -> None:
    offer = convert.tree_to_pb(DraftTree.chain([7, 8, 9], TokenSource.PHRASE, [0.9, 0.9, 0.9]))
    async with serve_drafter() as (channel, _):
        call: Any = DrafterStub(channel).Draft()
        await send_and_read(call, open_drafter(strategy="fused"))
        request = propose(LENGTH + 1, [5], 16, offer=offer, tokens_per_second=1e9)
        answer = await send_and_read(call, request)
        assert answer.timings.forwards == 1
        assert TokenSource.PHRASE in answer.draft.sources
        call.cancel()


@pytest.mark.parametrize(
    ("offer", "field"),
    [
        (DraftTree((-1,), (-1,), (0.5,), (TokenSource.PHRASE,)), "draft.token_ids[0]"),
        (DraftTree((5, 6), (-1, 1), (0.5, 0.5), (TokenSource.PHRASE,) * 2), "draft.parents[1]"),
        (DraftTree.chain([5], TokenSource.PHRASE, [float("nan")]), "draft.estimates[0]"),
        (DraftTree.chain([5] * 200, TokenSource.PHRASE), "draft.token_ids"),
    ],
)
async def test_invalid_offer_is_refused(serve_drafter: Start, offer: DraftTree, field: str) -> None:
    async with serve_drafter() as (channel, _):
        call: Any = DrafterStub(channel).Draft()
        await send_and_read(call, open_drafter(strategy="fused"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send_and_read(call, propose(LENGTH + 1, [5], 16, offer=convert.tree_to_pb(offer)))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert field in str(refused.value.details())


@pytest.mark.parametrize(
    ("field", "price"),
    [
        ("least_path_probability", float("nan")),
        ("least_path_probability", 1.5),
        ("tokens_per_second", float("inf")),
        ("tokens_per_second", -1.0),
    ],
)
async def test_invalid_price_is_refused(serve_drafter: Start, field: str, price: float) -> None:
    """All sessions learn from a draft's worth at that price; a NaN would stay for good."""
    prices: dict[str, Any] = {field: price}
    async with serve_drafter() as (channel, _):
        call: Any = DrafterStub(channel).Draft()
        await send_and_read(call, open_drafter(strategy="fused"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send_and_read(call, propose(LENGTH + 1, [5], 16, **prices))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert f"{field}: must be" in str(refused.value.details())


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"opt_tree": OptTreeParameters(nodes=0)}, "opt_tree.nodes"),
        ({"opt_tree": OptTreeParameters(delta=1.5)}, "opt_tree.delta"),
        ({"opt_tree": OptTreeParameters(depth=0)}, "opt_tree.depth"),
    ],
)
async def test_invalid_tree_parameters_are_refused(
    serve_drafter: Start, parameters: dict[str, Any], field: str
) -> None:
    async with serve_drafter() as (channel, _):
        call: Any = DrafterStub(channel).Draft()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send_and_read(call, open_drafter(strategy="opt_tree", **parameters))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert field in str(refused.value.details())


async def first_draft(served: Served, strategy: str, budget: int = 12, **parts: Any) -> DraftTree:
    """The first draft after a text that consists of the same tokens twice."""
    call: Any = DrafterStub(served[0]).Draft()
    parameters = OuroborosParameters(**parts)
    text = [*PROMPT, *PROMPT]
    await send_and_read(call, open_drafter(text, strategy=strategy, ouroboros=parameters))
    answer = await send_and_read(call, propose(len(text) + 1, PROMPT[:1], budget))
    call.cancel()
    return convert.tree_from_pb(answer.draft)


async def test_ouroboros_drafts_the_draft_models_greedy_chain(serve_drafter: Start) -> None:
    """Phrases and lookahead window only make drafting faster; the draft is the model's own."""
    async with serve_drafter() as served:
        chain = await first_draft(served, "speculative", 6)
        for by_phrases in (False, True):
            parts = {"draft_by_phrases": by_phrases, "lengthen": False}
            tree = await first_draft(served, "ouroboros", 6, **parts)
            assert tree.token_ids == chain.token_ids and tree.parents == chain.parents


@pytest.mark.parametrize(
    ("access", "parts", "lengthened"),
    [
        ({}, {}, True),
        ({}, {"lengthen": False}, False),
        ({}, {"history": False}, False),
        ({"tenant": "another"}, {}, False),
        ({"target_fingerprint": "another"}, {}, False),
        ({"scope": PHRASE_SCOPE_PRIVATE}, {}, False),
        ({"scope": PHRASE_SCOPE_OFF}, {}, False),
    ],
)
async def test_ouroboros_appends_phrases_of_earlier_requests_in_its_namespace(
    serve_drafter: Start, access: dict[str, Any], parts: dict[str, Any], lengthened: bool
) -> None:
    """The phrases appended to the chain cost no forward pass of the draft model."""
    async with serve_drafter() as (channel, _):
        stub = DrafterStub(channel)
        first: Any = stub.Draft()
        await send_and_read(first, open_drafter(strategy="ouroboros"))
        draft = convert.tree_from_pb((await send_and_read(first, propose(LENGTH + 1, [7]))).draft)
        emitted = (*draft.token_ids, 90)
        verdict = Verdict(tuple(range(len(draft))), emitted, emitted[0], emitted[1:])
        await send_and_read(first, propose(LENGTH + 1 + len(emitted), emitted, verdict=verdict))
        second: Any = stub.Draft()
        opened: dict[str, Any] = {
            "phrases": PhraseAccess(**access),
            "ouroboros": OuroborosParameters(**parts),
        }
        await send_and_read(second, open_drafter(strategy="ouroboros", **opened))
        answer = await send_and_read(second, propose(LENGTH + 1, [7], 3 * len(draft) // 2 + 1))
        tree = convert.tree_from_pb(answer.draft)
        assert tree.token_ids[: len(draft)] == draft.token_ids
        assert ((len(draft) - 1, 90) in tree.children()) is lengthened
        assert TokenSource.PHRASE not in tree.sources or lengthened
        first.cancel()
        second.cancel()


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (open_drafter([]), "token_ids"),
        (open_drafter([-1, 5]), "token_ids[0]"),
        (open_drafter(strategy="guess"), "strategy"),
        (open_drafter(sampling=sampling(top_p=-1)), "top_p"),
        (propose(LENGTH), "kind"),
    ],
)
async def test_invalid_opening_is_refused_with_the_field(
    serve_drafter: Start, message: drafter_pb2.DraftRequest, field: str
) -> None:
    async with serve_drafter() as (channel, host):
        call = DrafterStub(channel).Draft()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send_and_read(call, message)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert detail(refused.value, BadRequest).field_violations[0].field == field
        await wait_until_slots_free(host)


async def test_stale_position_is_refused_with_the_committed_length(serve_drafter: Start) -> None:
    async with serve_drafter() as (channel, host):
        call: Any = DrafterStub(channel).Draft()
        await send_and_read(call, open_drafter())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send_and_read(call, propose(LENGTH + 5, [1]))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert detail(refused.value, ErrorInfo).metadata["committed_length"] == str(LENGTH)
        await wait_until_slots_free(host)


@pytest.mark.parametrize(
    ("verdict", "field"),
    [
        (Verdict((), (5,), 4096, ()), "verdict.root_prediction"),
        (Verdict((), (5,), 5, (-7,)), "verdict.node_predictions"),
        (Verdict((0,), (5,), 5, ()), "verdict.accepted_nodes"),
    ],
)
async def test_invalid_verdict_is_refused(
    serve_drafter: Start, verdict: Verdict, field: str
) -> None:
    """A verdict becomes phrases, from which others draft."""
    async with serve_drafter() as (channel, host):
        call = DrafterStub(channel).Draft()
        await send_and_read(call, open_drafter(strategy="ouroboros"))
        with pytest.raises(grpc.RpcError) as caught:
            await send_and_read(call, propose(LENGTH + 1, (5,), verdict=verdict))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert detail(caught.value, BadRequest).field_violations[0].field == field
        await wait_until_slots_free(host)


@pytest.mark.parametrize("strategy", ["ouroboros", "speculative"])
async def test_zero_budget_gives_an_empty_draft(serve_drafter: Start, strategy: str) -> None:
    async with serve_drafter() as (channel, _):
        call = DrafterStub(channel).Draft()
        await send_and_read(call, open_drafter(strategy=strategy))
        answer = await send_and_read(call, propose(LENGTH + 1, (5,), nodes=0))
        assert not answer.draft.token_ids
        with pytest.raises(grpc.RpcError) as caught:
            await send_and_read(call, propose(10**6, (5,) * (10**6 - LENGTH - 1)))
        assert "must be at most the context length" in str(caught.value.details())
