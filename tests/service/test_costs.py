"""Corrected cost curves travel from forward passes to Info and on to the orchestrator."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from draftloop.deadline import Deadline
from draftloop.model_info import CostPoint
from draftloop.runtime.cost_curve import CostCurve
from draftloop.speculation import FUSED, TOKEN_RECYCLING, FusedParameters, Speculation
from orchestrator import deployment, discovery
from orchestrator.config import OrchestratorSettings
from protos import drafter_pb2, verifier_pb2
from protos.drafter_pb2_grpc import DrafterStub
from protos.verifier_pb2_grpc import VerifierStub
from tests.service.conftest import MODEL, Start
from tests.service.sessions import (
    PROMPT,
    open_drafter,
    open_verifier,
    propose,
    send_and_read,
    verify,
)
from tests.support.generation_request import generation_request
from tests.support.model_info import model_info
from tests.support.ports import quiet_port
from tests.support.waiting import eventually

# Far slower than the model, so that every forward pass corrects the curve downwards.
SLOW = (CostPoint(1, 60_000_000_000, 128), CostPoint(32, 90_000_000_000, 128))
ROUNDS = 4
RECYCLING_ALONE = FusedParameters(draft_model=False, phrases=False, own_text=False)


async def test_verifier_reports_measured_forward_costs(serve_verifier: Start) -> None:
    async with serve_verifier() as (channel, host):
        stub = VerifierStub(channel)
        host.model.costs = CostCurve(SLOW)
        call = stub.Verify()
        answer = await send_and_read(call, open_verifier())
        curves = []
        for length in range(len(PROMPT) + 1, len(PROMPT) + 1 + ROUNDS):
            info = (await stub.Info(verifier_pb2.VerifierInfoRequest())).model
            curves.append([point.forward_ns for point in info.cost_curve])
            answer = await send_and_read(call, verify(length))
            assert len(answer.verdict.emitted_token_ids) == 1
        assert curves == sorted(curves, reverse=True) and curves[0] != curves[-1]
        assert curves[-1][0] < SLOW[0].forward_ns


async def test_drafter_reports_measured_forward_costs(serve_drafter: Start) -> None:
    async with serve_drafter() as (channel, host):
        stub = DrafterStub(channel)
        host.model.costs = CostCurve(SLOW)
        call = stub.Draft()
        await send_and_read(call, open_drafter())
        await send_and_read(call, propose(len(PROMPT), nodes=2))
        info = (await stub.Info(drafter_pb2.DrafterInfoRequest())).model
        assert info.cost_curve[0].forward_ns < SLOW[0].forward_ns
        assert info.instance_id == host.info.instance_id


def deployment_of(verifier: str, drafter: str) -> deployment.Deployment:
    """A deployment with services at these addresses, not started yet."""
    settings = OrchestratorSettings(verifiers=verifier, drafters=drafter, tokenizer=MODEL)
    return deployment.Deployment(settings)


async def test_orchestrator_refreshes_cost_curves_and_keeps_the_last_known(
    serve_verifier: Start, serve_drafter: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "POLL_INTERVAL_S", 0.05)
    listen = [f"127.0.0.1:{quiet_port()}" for _ in range(2)]
    started = deployment_of(*listen)

    def curves() -> list[tuple[CostPoint, ...]]:
        return [model.cost_curve for model in (started.verifier, started.drafter) if model]

    try:
        async with (
            serve_verifier(listen=listen[0]) as (_, verifier),
            serve_drafter(listen=listen[1]) as (_, drafter),
        ):
            await started.start()
            for host in (verifier, drafter):
                host.model.costs = CostCurve(SLOW)
            await eventually(lambda: curves() == [SLOW, SLOW])
        await asyncio.sleep(0.2)  # meanwhile several queries find nobody
        assert curves() == [SLOW, SLOW]
    finally:
        await started.stop()


async def test_drafter_on_the_verifiers_machine_is_charged_to_all_requests(
    serve_verifier: Start, serve_drafter: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen = [f"127.0.0.1:{quiet_port()}" for _ in range(2)]
    started = deployment_of(*listen)
    request = generation_request(prompt=PROMPT, speculation=Speculation(strategy=FUSED))
    try:
        async with (
            serve_verifier(listen=listen[0]) as (_, verifier),
            serve_drafter(listen=listen[1]) as (_, drafter),
        ):
            await started.start()
            assert verifier.info.processor == drafter.info.processor
            assert started.generation(request, Deadline()).controller.drafter_shares_processor
            elsewhere = dataclasses.replace(drafter.info, processor="elsewhere")
            monkeypatch.setattr(deployment.Deployment, "drafter", elsewhere)
            assert not started.generation(request, Deadline()).controller.drafter_shares_processor
    finally:
        await started.stop()


@pytest.mark.parametrize(
    ("forward_ns", "speculation", "recycles"),
    [
        (7_999_999, Speculation(strategy=FUSED), False),
        (8_000_000, Speculation(strategy=FUSED), True),
        (7_999_999, Speculation(strategy=FUSED, max_draft_tokens=8), True),
        (7_999_999, Speculation(strategy=FUSED, fused=RECYCLING_ALONE), True),
        (7_999_999, Speculation(strategy=TOKEN_RECYCLING), True),
        (None, Speculation(strategy=FUSED), True),
    ],
)
def test_successors_are_requested_when_forwards_are_slow(
    forward_ns: int | None,
    speculation: Speculation,
    recycles: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if no other free source is on, or the request sets how much is drafted."""
    curve = () if forward_ns is None else (CostPoint(1, forward_ns),)
    monkeypatch.setattr(deployment.Deployment, "verifier", model_info(cost_curve=curve))
    request = generation_request(prompt=PROMPT, speculation=speculation)
    generation = deployment_of("127.0.0.1:1", "").generation(request, Deadline())
    assert (generation.request.successors > 0) == recycles
