"""Orchestrator sessions on fake verifiers and drafters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from draftloop.deadline import Deadline
from draftloop.errors import Unavailable
from draftloop.rpc.channel import open_channel
from draftloop.tree import DraftBudget
from orchestrator.drafter_session import DrafterSession
from orchestrator.replicas import Replica, Replicas
from orchestrator.terms import SessionTerms
from protos import drafter_pb2_grpc, verifier_pb2_grpc
from tests.support.generation_request import generation_request
from tests.support.model_info import model_info

REQUEST = generation_request(max_tokens=8)
PROMPT = REQUEST.prompt
TARGET = model_info(context_length=64)
BUDGET = DraftBudget(max_nodes=4, max_depth=4)
# A call that does not wait takes less than AT_ONCE_S even on a machine that pauses briefly. That is
# less than DRAFT_TIMEOUT_S, for which one waits for an answer. Twice DRAFT_TIMEOUT_S is less than a
# drafter may be silent.
DRAFT_TIMEOUT_S = 0.8
AT_ONCE_S = 0.6
add_verifier = verifier_pb2_grpc.add_VerifierServicer_to_server
add_drafter = drafter_pb2_grpc.add_DrafterServicer_to_server


def session_terms(seconds: float | None = None, answer_timeout_s: float = 20.0) -> SessionTerms:
    return SessionTerms(
        request=REQUEST,
        vocabulary_fingerprint="bb",
        target=model_info(),
        answer_timeout_s=answer_timeout_s,
        deadline=Deadline.after(seconds),
    )


@asynccontextmanager
async def replicas(*addresses: str) -> AsyncIterator[Replicas]:
    channels = [open_channel(address, 1 << 20) for address in addresses]
    try:
        yield Replicas(map(Replica, addresses, channels))
    finally:
        for channel in channels:
            await channel.close()


@asynccontextmanager
async def drafter_session(known: Replicas) -> AsyncIterator[DrafterSession]:
    session = DrafterSession(known, session_terms(answer_timeout_s=DRAFT_TIMEOUT_S))
    try:
        yield session
    finally:
        await session.close()


async def can_propose(session: DrafterSession) -> bool:
    """Whether the drafter answers; a failure takes no longer than the drafter's timeout."""
    started = time.monotonic()
    try:
        await session.propose(PROMPT, None, BUDGET)
    except Unavailable:
        assert time.monotonic() - started < DRAFT_TIMEOUT_S + AT_ONCE_S
        return False
    return True


async def becomes_ready(session: DrafterSession) -> bool:
    """Whether one of the next rounds gets a draft."""
    for _ in range(400):
        if await can_propose(session):
            return True
        await asyncio.sleep(0.05)
    return False
