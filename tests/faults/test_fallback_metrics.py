"""Rounds that go without the drafter are counted, each by its reason."""

from __future__ import annotations

import asyncio

import pytest

from draftloop.errors import Unavailable
from draftloop.metrics import REGISTRY
from draftloop.rpc.channel import open_channel
from draftloop.tree import DraftBudget
from orchestrator.drafter_session import DrafterSession
from orchestrator.replicas import Replica, Replicas
from protos import drafter_pb2, drafter_pb2_grpc
from tests.faults import fakes
from tests.faults.test_sessions import PROMPT, TARGET, terms

BUDGET = DraftBudget(max_nodes=4, max_depth=4)


def counted() -> dict[str, float]:
    name = "draftloop_fallback_rounds_total"
    reasons = ("no_session", "opening", "no_answer", "invalid_input")
    return {each: REGISTRY.get_sample_value(name, {"reason": each}) or 0.0 for each in reasons}


async def falls_back(session: DrafterSession) -> str:
    """The reason that one round was counted for."""
    before = counted()
    with pytest.raises(Unavailable):
        await session.propose(PROMPT, None, BUDGET)
    [reason] = [name for name, count in counted().items() if count != before[name]]
    return reason


@pytest.mark.parametrize("reason", ["no_answer", "invalid_input"])
async def test_a_drafter_that_hangs_or_answers_nonsense(reason: str) -> None:
    def nonsense(asked: drafter_pb2.ProposeDraft, _: object) -> fakes.Reply:
        return fakes.draft(asked.committed_length, [1, 2], [5, 9])

    hangs = reason == "no_answer"
    fake = fakes.FakeDrafter(None, nonsense, delay_s=3600 if hangs else 0)
    add = drafter_pb2_grpc.add_DrafterServicer_to_server
    async with fakes.listening(add, fake) as address:
        channel = open_channel(address, 1 << 20)
        known = Replicas([Replica(address, channel)])
        session = DrafterSession(known, terms(answer_timeout_s=0.3), target=TARGET)
        assert await falls_back(session) == "no_session"
        while (found := await falls_back(session)) == "opening":
            await asyncio.sleep(0.01)
        assert found == reason
        assert await falls_back(session) == "no_session"
        await session.close()
        await channel.close()
