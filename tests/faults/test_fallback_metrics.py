"""Rounds without a draft from the drafter are counted by reason."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from draftloop.errors import InvalidInput, Unavailable
from draftloop.metrics import REGISTRY
from draftloop.tree import DraftBudget
from orchestrator.drafter_session import DrafterSession
from orchestrator.replicas import Replica, Replicas
from protos import drafter_pb2
from tests.faults import fakes
from tests.faults.open_sessions import (
    PROMPT,
    add_drafter,
    becomes_ready,
    replicas,
    session_terms,
)
from tests.support.model_info import model_info

BUDGET = DraftBudget(max_nodes=4, max_depth=4)


def fallback_counts() -> dict[str, float]:
    name = "draftloop_fallback_rounds_total"
    reasons = (
        "no_session", "opening", "no_answer", "invalid_input", "context", "refused", "failing",
    )  # fmt: skip
    return {each: REGISTRY.get_sample_value(name, {"reason": each}) or 0.0 for each in reasons}


async def fallback_reason(session: DrafterSession, committed: Sequence[int] = PROMPT) -> str:
    """The reason under which one failed round was counted."""
    before = fallback_counts()
    with pytest.raises(Unavailable):
        await session.propose(committed, None, BUDGET)
    [reason] = [name for name, count in fallback_counts().items() if count != before[name]]
    return reason


@pytest.mark.parametrize("reason", ["no_answer", "invalid_input"])
async def test_hanging_and_invalid_drafters_are_counted(reason: str) -> None:
    def invalid_draft(request: drafter_pb2.ProposeDraft, _: object) -> fakes.Reply:
        return fakes.draft(request.committed_length, [1, 2], [5, 9])

    hangs = reason == "no_answer"
    limit = 0.3 if hangs else 30.0
    fake = fakes.FakeDrafter(None, invalid_draft, delay_s=3600 if hangs else 0)
    async with fakes.listening(add_drafter, fake) as address, replicas(address) as known:
        session = DrafterSession(known, session_terms(answer_timeout_s=limit))
        assert await fallback_reason(session) == "no_session"
        while (observed := await fallback_reason(session)) == "opening":
            await asyncio.sleep(0.01)
        assert observed == reason
        assert await fallback_reason(session) == "no_session"
        await session.close()


def one_node(request: drafter_pb2.ProposeDraft, _: object) -> fakes.Reply:
    return fakes.draft(request.committed_length, [1], [-1])


@contextlib.asynccontextmanager
async def short_context_drafter(
    fake: fakes.FakeDrafter,
) -> AsyncIterator[tuple[Replicas, Replica]]:
    """A drafter whose model reads texts of up to five tokens."""
    async with fakes.listening(add_drafter, fake) as address, replicas(address) as known:
        (replica,) = known
        replica.model = model_info(context_length=6)
        known.join(replica)
        yield known, replica


async def test_text_beyond_the_draft_models_context_does_not_blame_the_drafter() -> None:
    """Draft models often have shorter contexts. Their drafters are not avoided for that."""
    fake = fakes.FakeDrafter(None, one_node)
    async with short_context_drafter(fake) as (known, replica):
        session = DrafterSession(known, session_terms())
        long = DrafterSession(known, session_terms())
        assert await becomes_ready(session)
        requests = fake.asked
        assert await fallback_reason(session, range(6)) == "context"
        long.open(range(6))
        assert not long.is_requested
        assert await fallback_reason(long, range(6)) == "context"
        assert fake.asked == requests and not replica.is_resting and not replica.sessions
        second = DrafterSession(known, session_terms())
        assert await becomes_ready(second)
        for each in (session, long, second):
            await each.close()


async def test_no_session_is_opened_for_text_beyond_the_draft_models_context() -> None:
    fake = fakes.FakeDrafter(None, one_node)
    async with short_context_drafter(fake) as (known, replica):
        session = DrafterSession(known, session_terms())
        session.open(range(5))  # the opening task has not started
        assert session.is_requested
        assert await fallback_reason(session, range(6)) == "context"
        await asyncio.sleep(0.1)
        assert not session.is_requested and not replica.sessions and not replica.is_resting
        await session.close()


async def test_request_refused_by_a_drafter_is_not_retried_and_blames_no_drafter() -> None:
    """A drafter may refuse a request, as for a bias on a token that the draft model lacks."""

    def refuse(request: drafter_pb2.ProposeDraft, _: object) -> fakes.Reply:
        raise InvalidInput("sampling.logit_bias", "must name tokens below 96", 100)

    fake = fakes.FakeDrafter(None, refuse)
    async with fakes.listening(add_drafter, fake) as address, replicas(address) as known:
        (replica,) = known
        session = DrafterSession(known, session_terms())
        session.open(PROMPT)
        while (observed := await fallback_reason(session)) == "opening":
            await asyncio.sleep(0.01)
        assert observed == "invalid_input"
        assert await fallback_reason(session) == "refused"
        assert fake.asked == 1 and not replica.is_resting and not replica.sessions
        await session.close()
