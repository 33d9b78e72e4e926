"""SIGTERM under load: running requests finish, and the process ends with status 0."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from draftloop.errors import Unavailable
from draftloop.rpc.server import RoleServer
from orchestrator.config import OrchestratorSettings
from orchestrator.verifier_session import NOT_REACHED, VerifierSession
from protos import verifier_pb2_grpc
from tests.e2e.client import Case
from tests.faults import fakes
from tests.faults.fleet import Fleet
from tests.faults.load import Load
from tests.faults.open_sessions import PROMPT, add_verifier, replicas, session_terms

CROWD = 48


@pytest.mark.parametrize("name", ["v1", "d1", "o1"])
def test_orchestrator_finishes_running_requests_on_sigterm(
    fleet: Fleet, requests: list[Case], fault_free_outputs: list[list[int]], name: str
) -> None:
    """Sixteen requests run through the first orchestrator, half of them over HTTP."""
    reopened = fleet.log("orchestrator").count("verifier session lost")
    with Load(fleet.orchestrators[:1], requests, fault_free_outputs, once=True) as load:
        load.wait_until_under_way()
        fleet.processes[name].send(signal.SIGTERM)
    load.tally.assert_none_lost()
    assert load.tally.answered == len(requests) and not load.tally.retried
    assert fleet.processes[name].wait_for_exit() == 0
    assert fleet.log("orchestrator").count("verifier session lost") == reopened


class StoppingVerifier(verifier_pb2_grpc.VerifierServicer):
    """Answers as gRPC's core answers a call that arrives while a server stops."""

    async def Verify(self, messages: Any, context: Any) -> AsyncIterator[Any]:
        await context.abort(grpc.StatusCode.CANCELLED)
        yield


async def test_session_refused_by_a_stopping_verifier_goes_to_another() -> None:
    async with (
        fakes.listening(add_verifier, StoppingVerifier()) as stopping,
        fakes.listening(add_verifier, fakes.ScriptedVerifier()) as running,
    ):
        for order in ((stopping, running), (running, stopping)):
            async with replicas(*order) as known:
                session = VerifierSession(known, session_terms(), reopen_for_s=1)
                assert (await session.open(PROMPT)).verdict.emitted_token_ids
                await session.close()
        async with replicas(stopping) as known:
            with pytest.raises(Unavailable, match=NOT_REACHED):
                await VerifierSession(known, session_terms(), reopen_for_s=1).open(PROMPT)


async def test_sessions_opened_while_one_verifier_stops_are_served() -> None:
    """Sessions that are being opened when a verifier stops are served by the other."""
    server = RoleServer("any", OrchestratorSettings(listen="127.0.0.1:0", grace_period_s=60))
    add_verifier(fakes.ScriptedVerifier(), server.server)
    await server.listen()
    await server.ready()
    async with (
        fakes.listening(add_verifier, fakes.ScriptedVerifier()) as running,
        replicas(server.address, running) as known,
    ):
        for replica in known:  # a replica without a connection is chosen last
            await replica.channel.channel_ready()
        sessions = [VerifierSession(known, session_terms(), reopen_for_s=60) for _ in range(CROWD)]
        opening = [asyncio.create_task(session.open(PROMPT)) for session in sessions]
        await asyncio.sleep(0)  # now the calls have been sent
        draining = asyncio.create_task(server.drain())
        for answer in await asyncio.gather(*opening):
            assert answer.verdict.emitted_token_ids
        await asyncio.gather(*(session.close() for session in sessions))
        await draining
