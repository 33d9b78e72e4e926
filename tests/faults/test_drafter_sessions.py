"""Drafter sessions of a request when drafters hang, prefill for long, fail or answer nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from draftloop.errors import SessionLost, Unavailable
from draftloop.tree import EMPTY_TREE, ROOT, DraftBudget, DraftTree, TokenSource, Verdict
from orchestrator.drafter_session import MAX_FAILED_PROPOSALS, DrafterSession
from orchestrator.replicas import Replica, Replicas
from protos import drafter_pb2
from tests.faults import fakes
from tests.faults.open_sessions import (
    AT_ONCE_S,
    BUDGET,
    DRAFT_TIMEOUT_S,
    PROMPT,
    TARGET,
    add_drafter,
    becomes_ready,
    can_propose,
    drafter_session,
    replicas,
    session_terms,
)
from tests.support.model_info import model_info
from tests.support.waiting import eventually


@contextlib.asynccontextmanager
async def session_with(fake: fakes.FakeDrafter) -> AsyncIterator[tuple[DrafterSession, Replicas]]:
    """A session that is not open yet, and its replicas: this drafter only."""
    async with (
        fakes.listening(add_drafter, fake) as address,
        replicas(address) as known,
        drafter_session(known) as session,
    ):
        yield session, known


async def test_unanswering_drafter_costs_no_time() -> None:
    async with (
        fakes.black_hole() as address,
        replicas(address) as known,
        drafter_session(known) as session,
    ):
        started = time.monotonic()
        session.open(PROMPT)
        for _ in range(5):
            assert not await can_propose(session)
        await session.close()
        assert time.monotonic() - started < AT_ONCE_S
        (replica,) = known.by_preference()
        assert replica.sessions == 0


async def test_hanging_drafter_is_avoided_and_used_again_when_healthy() -> None:
    fake = fakes.FakeDrafter(None, fakes.wrong_chain, delay_s=3600)
    async with session_with(fake) as (session, known):
        session.open(PROMPT)
        while not fake.asked:
            assert not await can_propose(session)
            await asyncio.sleep(0.01)
        (replica,) = known.by_preference()
        assert replica.failures == 1 and replica.is_resting
        started = time.monotonic()
        assert not await can_propose(session)
        assert time.monotonic() - started < AT_ONCE_S and fake.asked == 1
        fake.delay_s = 0.0
        assert await becomes_ready(session)
        assert replica.failures == 0 and not replica.is_resting


async def test_rounds_go_on_without_a_drafter_that_is_still_prefilling() -> None:
    """No round waits for a drafter that prefills for long, and it is not given up."""
    fake = fakes.FakeDrafter(None, fakes.wrong_chain)
    fake.prefill_s = 2 * DRAFT_TIMEOUT_S
    async with session_with(fake) as (session, known):
        session.open(PROMPT)
        began, longest = time.monotonic(), 0.0
        (replica,) = known
        await eventually(lambda: replica.is_connected)
        assert not await can_propose(session)  # this round waits once, as long as for an answer
        while not session.is_ready:
            started = time.monotonic()
            assert not await can_propose(session)
            longest = max(longest, time.monotonic() - started)
            await asyncio.sleep(0.01)
        assert longest < AT_ONCE_S
        assert time.monotonic() - began > 1.5 * DRAFT_TIMEOUT_S
        assert await can_propose(session)
        assert fake.opened == 1 and replica.failures == 0 and replica.sessions == 1


async def test_session_freed_by_the_drafter_is_reopened_at_once() -> None:
    """A session freed for being idle is no failure of the drafter, for other requests either."""
    losses = iter([True])

    def propose_after_loss(request: Any, rng: random.Random) -> Any:
        if next(losses, False):
            raise SessionLost("idle")
        return fakes.wrong_chain(request, rng)

    fake = fakes.FakeDrafter(None, propose_after_loss)
    async with session_with(fake) as (session, known):
        (replica,) = known
        session.open(PROMPT)
        assert await becomes_ready(session)  # although the first answer is that the session is gone
        assert not replica.is_resting and replica.failures == 0
        assert fake.opened == 2


async def test_session_that_expired_between_two_messages_is_no_failure() -> None:
    """The next message finds a stream that has ended; only its status says why."""
    expires = asyncio.Event()

    class Expiring(fakes.FakeDrafter):
        async def Draft(self, messages: Any, context: Any) -> AsyncIterator[fakes.Reply]:
            message = await anext(messages)
            yield fakes.Reply(committed_length=len(message.open.token_ids))
            await expires.wait()
            await context.abort(grpc.StatusCode.NOT_FOUND, "idle")

    async with session_with(Expiring(None, fakes.wrong_chain)) as (session, known):
        (replica,) = known
        session.open(PROMPT)
        await eventually(lambda: session.is_ready)
        assert session._stream is not None
        call = session._stream._call
        expires.set()
        await eventually(call.done)
        with pytest.raises(Unavailable, match="idle"):
            await session.propose(PROMPT, None, BUDGET)
        assert not replica.is_resting and replica.failures == 0


async def test_call_that_was_cancelled_fails_without_cancelling_the_request() -> None:
    async with session_with(fakes.FakeDrafter(None, fakes.wrong_chain)) as (session, _):
        session.open(PROMPT)
        await eventually(lambda: session.is_ready)
        assert session._stream is not None
        session._stream._call.cancel()  # as closing the channel does
        with pytest.raises(Unavailable, match="the stream has ended"):
            await session.propose(PROMPT, None, BUDGET)


@pytest.mark.parametrize("behavior", [fakes.broken, fakes.cycle])
async def test_request_gives_up_on_a_drafter_whose_drafts_fail(behavior: fakes.Behavior) -> None:
    """It used to go on for ever: opening succeeded, and each proposal cost up to its timeout."""
    fake = fakes.FakeDrafter(None, behavior)
    async with session_with(fake) as (session, known):
        (replica,) = known
        for count in range(1, MAX_FAILED_PROPOSALS + 1):
            await eventually(lambda: not replica.is_resting)
            session.open(PROMPT)
            await eventually(lambda: session.is_ready)
            assert not await can_propose(session)
            assert fake.asked == replica.failures == count  # opening is not yet a success
        session.open(PROMPT)
        assert not session.can_serve(PROMPT) and not session.is_requested
        with pytest.raises(Unavailable, match="proposals have failed"):
            await session.propose(PROMPT, None, BUDGET)


async def test_failed_drafter_is_tried_by_one_request_at_a_time() -> None:
    fake = fakes.FakeDrafter(None, fakes.wrong_chain)
    async with (
        fakes.listening(add_drafter, fake) as address,
        replicas(address) as known,
        drafter_session(known) as first,
        drafter_session(known) as second,
    ):
        (replica,) = known.by_preference()
        replica.failures = 3  # and its rest is over
        first.open(PROMPT)
        second.open(PROMPT)
        await asyncio.sleep(0.05)
        assert replica.sessions == 1
        assert await becomes_ready(first)
        assert await becomes_ready(second)


WRONG = [fakes.too_deep, fakes.wrong_length, fakes.too_many, fakes.cycle, fakes.out_of_vocabulary]


@pytest.mark.parametrize("invalid", WRONG, ids=lambda invalid: invalid.__name__)
async def test_invalid_draft_is_not_passed_on(
    invalid: fakes.Behavior,
) -> None:
    """A verifier would refuse an invalid draft or judge it elsewhere. The round has no draft."""
    replies = iter([invalid])
    fake = fakes.FakeDrafter(
        None, lambda request, rng: next(replies, fakes.wrong_chain)(request, rng)
    )
    async with session_with(fake) as (session, known):
        (replica,) = known
        session.open(PROMPT)
        await eventually(lambda: session.is_ready)
        with pytest.raises(Unavailable):
            await session.propose(PROMPT, None, DraftBudget(max_nodes=4, max_depth=2))
        assert fake.asked == replica.failures == 1
        assert await becomes_ready(session)
        assert replica.failures == 0


@contextlib.asynccontextmanager
async def session_with_vocabulary(
    size: int, behavior: fakes.Behavior
) -> AsyncIterator[tuple[DrafterSession, Replica]]:
    """A ready session on a drafter whose model's output layer has `size` tokens."""
    async with session_with(fakes.FakeDrafter(None, behavior)) as (session, known):
        (replica,) = known
        replica.model = model_info(vocabulary_size=size)
        known.join(replica)
        session.open(PROMPT)
        await eventually(lambda: session.is_ready)
        yield session, replica


async def test_offers_omit_tokens_that_the_draft_model_lacks() -> None:
    """The drafter would refuse them and be avoided: one request's phrases stopped all drafts."""
    offered: list[tuple[list[int], list[int]]] = []

    def record_offer(request: drafter_pb2.ProposeDraft, _: random.Random) -> fakes.Reply:
        offered.append((list(request.offer.token_ids), list(request.offer.parents)))
        return fakes.draft(request.committed_length, [5], [ROOT])

    offer = DraftTree((7, 100, 8, 9), (ROOT, ROOT, 1, 0), (0.5,) * 4, (TokenSource.PHRASE,) * 4)
    async with session_with_vocabulary(100, record_offer) as (session, _):
        assert (await session.propose(PROMPT, None, BUDGET, offer)).tree.token_ids == (5,)
    assert offered == [([7, 9], [ROOT, 0])]


async def test_verdict_with_a_token_that_the_draft_model_lacks_is_not_sent() -> None:
    """The drafter used to refuse it, and the request went on without a drafter."""
    received: list[bool] = []

    def record_verdict(request: drafter_pb2.ProposeDraft, _: random.Random) -> fakes.Reply:
        received.append(request.HasField("verdict"))
        return fakes.draft(request.committed_length, [5], [ROOT])

    async with session_with_vocabulary(100, record_verdict) as (session, _):
        await session.propose(PROMPT, None, BUDGET)
        for length, prediction in enumerate((99, 100), 1):
            verdict = Verdict((), (3,), 3, node_predictions=(prediction,))
            await session.propose([*PROMPT, *(3,) * length], verdict, BUDGET)
    assert received == [False, True, False]


async def test_drafts_omit_tokens_that_only_the_draft_model_has() -> None:
    """Unused rows of the output layer may be drafted at high temperatures; that is no fault."""
    unknown_token = TARGET.vocabulary_size

    def padded(request: drafter_pb2.ProposeDraft, _: random.Random) -> fakes.Reply:
        return fakes.draft(request.committed_length, [5, unknown_token, 6, 7], [ROOT, ROOT, 1, 0])

    async with session_with_vocabulary(unknown_token + 1, padded) as (session, replica):
        draft = await session.propose(PROMPT, None, BUDGET)
        assert (draft.tree.token_ids, draft.tree.parents) == ((5, 7), (ROOT, 0))
        assert replica.failures == 0


def test_offer_is_cut_to_the_drafters_maximum() -> None:
    known = Replicas()
    session = DrafterSession(known, session_terms())
    replica = Replica("", None, model_info(max_draft_nodes=3))
    known.join(replica)
    offer = DraftTree.chain([1, 2, 3, 4, 5], TokenSource.PHRASE)
    assert session._trim_offer(offer) == DraftTree.chain([1, 2, 3], TokenSource.PHRASE)
    assert session._trim_offer(EMPTY_TREE) == EMPTY_TREE
