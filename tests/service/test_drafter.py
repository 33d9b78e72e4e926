"""The drafter alone: proposals, its own bookkeeping, refusals, and slots that come back."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from protos import drafter_pb2
from protos.drafter_pb2_grpc import DrafterStub
from protos.verifier_pb2_grpc import VerifierStub
from tests.service.conftest import Start
from tests.service.sessions import (
    PROMPT,
    BadRequest,
    ErrorInfo,
    all_free,
    detail,
    open_drafter,
    open_verifier,
    propose,
    sampling,
    say,
    verify,
)

LENGTH = len(PROMPT)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
async def test_a_drafter_of_the_same_model_is_always_right(
    serve_drafter: Start, serve_verifier: Start, temperature: float
) -> None:
    """The noise is shared: with equal models every draft is accepted whole, round after round.

    Guards positions, keys and values kept across rounds, and the noise of both services.
    """
    chosen: dict[str, Any] = {"sampling": sampling(temperature=temperature)}
    async with serve_drafter() as (near, _), serve_verifier() as (far, _):
        drafter, verifier = DrafterStub(near).Draft(), VerifierStub(far).Verify()
        await drafter.write(open_drafter(**chosen))
        committed = list(PROMPT)
        new = list((await say(verifier, open_verifier(**chosen))).verdict.emitted_token_ids)
        for round_number in range(8):
            committed += new
            nodes = 1 + round_number % 5
            draft = (await say(drafter, propose(len(committed), new, nodes))).draft
            assert len(draft.token_ids) == nodes
            answer = await say(verifier, verify(len(committed), draft.token_ids, draft.parents))
            assert len(answer.verdict.accepted_nodes) == nodes
            new = list(answer.verdict.emitted_token_ids)
        drafter.cancel()
        verifier.cancel()


async def test_a_session_recovers_from_refused_drafts(serve_drafter: Start) -> None:
    """After any committed tokens the draft is that of a session opened afresh on the same text."""
    async with serve_drafter() as (channel, host):
        stub = DrafterStub(channel)
        call = stub.Draft()
        await call.write(open_drafter())
        committed = list(PROMPT)
        new: list[int] = []
        for round_number in range(5):
            answer = await say(call, propose(len(committed), new, 5))
            fresh = stub.Draft()
            await fresh.write(open_drafter(committed))
            expected = await say(fresh, propose(len(committed), (), 5))
            fresh.cancel()
            assert answer.draft.token_ids == expected.draft.token_ids
            new = [*answer.draft.token_ids[:round_number], 50 + round_number]
            committed += new
        call.cancel()
        await all_free(host)


async def test_a_repeated_proposal_gets_the_same_draft(serve_drafter: Start) -> None:
    async with serve_drafter() as (channel, _):
        call = DrafterStub(channel).Draft()
        await call.write(open_drafter())
        first = await say(call, propose(LENGTH + 1, [5]))
        assert await say(call, propose(LENGTH + 1, [5])) == first
        call.cancel()


async def test_prompt_lookup_copies_from_the_text(serve_drafter: Start) -> None:
    """No forward is run for it."""
    async with serve_drafter() as (channel, _):
        call = DrafterStub(channel).Draft()
        text = [*PROMPT, 7, 8, 9]
        await call.write(open_drafter(text, strategy="prompt_lookup"))
        answer = await say(call, propose(len(text) + 2, PROMPT[:2], 6))
        assert tuple(answer.draft.token_ids) == PROMPT[2:8]
        assert answer.timings.forwards == 0
        call.cancel()


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
async def test_a_bad_opening_names_the_field(
    serve_drafter: Start, message: drafter_pb2.DraftRequest, field: str
) -> None:
    async with serve_drafter() as (channel, host):
        call = DrafterStub(channel).Draft()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await say(call, message)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert detail(refused.value, BadRequest).field_violations[0].field == field
        await all_free(host)


async def test_a_stale_position_is_told_the_true_one(serve_drafter: Start) -> None:
    async with serve_drafter() as (channel, host):
        call: Any = DrafterStub(channel).Draft()
        await call.write(open_drafter())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await say(call, propose(LENGTH + 5, [1]))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert detail(refused.value, ErrorInfo).metadata["committed_length"] == str(LENGTH)
        await all_free(host)
