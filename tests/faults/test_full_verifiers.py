"""Verifier sessions of a request when replicas are full, or fail but are alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from draftloop.errors import Overloaded
from draftloop.tree import EMPTY_TREE
from orchestrator import verifier_session
from orchestrator.verifier_session import VerifierSession
from protos import verifier_pb2_grpc
from tests.faults import fakes
from tests.faults.open_sessions import PROMPT, add_verifier, replicas, session_terms


@pytest.mark.parametrize("problem", [Overloaded("sessions: all are held", 1.0), RuntimeError("")])
async def test_request_that_has_begun_waits_for_a_living_replica(problem: Exception) -> None:
    """One that is full, or fails after a long wait in its queue; both used to end the request."""
    is_full = isinstance(problem, Overloaded)
    search_s = 0.05 if is_full else 0.5

    class Recovering(fakes.ScriptedVerifier):
        refusals = 0

        async def Verify(self, messages: Any, context: Any) -> AsyncIterator[Any]:
            if self.refusals:
                self.refusals -= 1
                await anext(messages)
                await asyncio.sleep(0.1 if is_full else 2 * search_s)
                raise problem
            async for answer in super().Verify(messages, context):
                yield answer

    fake = Recovering()
    async with fakes.listening(add_verifier, fake) as address, replicas(address) as known:
        session = VerifierSession(known, session_terms(), reopen_for_s=search_s)
        await session.open(PROMPT)
        fake.refusals = 3 if is_full else 1
        session._drop()
        assert (await session.verify((*PROMPT, 1), EMPTY_TREE)).verdict.emitted_token_ids
        assert session.reopened == 1 and not fake.refusals
        await session.close()


async def test_wait_for_full_replicas_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_session, "MAX_FULL_S", 0.2)
    async with (
        fakes.listening(add_verifier, FullVerifier(7.0)) as address,
        replicas(address) as known,
    ):
        session = VerifierSession(known, session_terms(), reopen_for_s=0.05)
        with pytest.raises(Overloaded, match="sessions: all are held"):
            await session.verify((*PROMPT, 1), EMPTY_TREE)


class FullVerifier(verifier_pb2_grpc.VerifierServicer):
    """A verifier without a free slot."""

    def __init__(self, retry_after_s: float) -> None:
        self._retry_after_s = retry_after_s

    async def Verify(self, messages: Any, context: Any) -> AsyncIterator[Any]:
        await anext(messages)
        raise Overloaded("sessions: all are held", self._retry_after_s)
        yield


@pytest.mark.parametrize("hints", [(7.0,), (9.0, 7.0), (7.0, 9.0)])
async def test_full_and_dead_verifiers_give_a_retry_hint(
    hints: tuple[float, ...],
) -> None:
    """The last replica's error used to be returned, and the retry hint was lost."""
    async with AsyncExitStack() as stack:
        async with fakes.listening(add_verifier, fakes.ScriptedVerifier()) as dead:
            pass
        addresses = [
            await stack.enter_async_context(fakes.listening(add_verifier, FullVerifier(retry_hint)))
            for retry_hint in hints
        ]
        for order in ([*addresses, dead], [dead, *addresses]):
            async with replicas(*order) as known:
                with pytest.raises(Overloaded, match="sessions: all are held") as caught:
                    await VerifierSession(known, session_terms(), reopen_for_s=1).open(PROMPT)
                assert caught.value.retry_after_s == 7.0
                assert all(replica.failures for replica in known)  # each was asked
