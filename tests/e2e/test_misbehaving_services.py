"""Services that give wrong answers, hang or lose sessions may cost speed, never a token."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

import grpc
import pytest

from draftloop.speculation import DRAFTER_STRATEGIES
from orchestrator.launcher import Stack
from orchestrator.metrics import FAILURES, HOP_TIME, SUCCESSES
from protos import drafter_pb2, drafter_pb2_grpc, generation_pb2_grpc, verifier_pb2_grpc
from protos import generation_pb2 as pb
from tests.e2e.client import Case, first_difference
from tests.e2e.conftest import InProcess
from tests.faults import fakes
from tests.support.forked import ForkedRole
from tests.support.sessions import wait_for_forwards, wait_until_serving
from tests.support.waiting import eventually

BEHAVIORS = [
    fakes.wrong_chain, fakes.branches, fakes.no_draft, fakes.cycle, fakes.out_of_vocabulary,
    fakes.wrong_length, fakes.too_many, fakes.uneven_lengths, fakes.garbage_estimates,
    fakes.huge_counts, fakes.broken,
]  # fmt: skip
REFUSED = {
    "cycle", "out_of_vocabulary", "wrong_length", "too_many", "uneven_lengths", "garbage_estimates",
    "broken",
}  # fmt: skip
# Misses that leave a strategy's state out of step with the text, each in its own way.
MISSES = [fakes.wrong_chain, fakes.branches, fakes.no_draft, fakes.out_of_vocabulary]
FEW_ROUNDS = 6
FAULTS = ["gone", "stale", "late", "end", "wrong position"]
# Strategies that keep a tree, phrases, reviews, a window or successors beside the text.
WITH_STATE = ["fused", "ouroboros", "cascade", "opt_tree", "token_recycling", "lookahead"]


async def answers(address: str, cases: list[Case], strategy: str) -> list[pb.GenerateOnceResponse]:
    """All cases at once, with eight draft tokens in every round whatever they cost."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = generation_pb2_grpc.GenerationStub(channel)
        requests = [case.parameters(strategy) for case in cases]
        for request in requests:
            request.speculation.max_draft_tokens = 8
            # Otherwise phrases of earlier tests might draft without the drafter.
            request.speculation.ouroboros.phrases_alone = False
        calls = [stub.GenerateOnce(pb.GenerateOnceRequest(parameters=r)) for r in requests]
        return list(await asyncio.gather(*calls))


def tokens(responses: list[pb.GenerateOnceResponse]) -> list[list[int]]:
    return [list(response.token_ids) for response in responses]


@pytest.mark.parametrize(
    ("strategy", "behavior"),
    [
        *(("speculative", behavior) for behavior in BEHAVIORS),
        *itertools.product([name for name in WITH_STATE if name in DRAFTER_STRATEGIES], MISSES),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_wrong_and_invalid_drafts_change_no_token(
    stack: Stack,
    orchestrator: InProcess,
    cases: list[Case],
    expected: list[list[int]],
    strategy: str,
    behavior: fakes.Behavior,
) -> None:
    """Eight concurrent requests with wrong, branching, empty and invalid drafts."""
    fake = fakes.FakeDrafter(await drafter_info(stack), behavior)
    add = drafter_pb2_grpc.add_DrafterServicer_to_server
    async with fakes.listening(add, fake) as drafter, orchestrator(drafters=drafter) as address:
        responses = await answers(address, cases[:8], strategy)
    assert fake.asked > 0
    assert not first_difference(expected[:8], tokens(responses))
    if behavior.__name__ in REFUSED:
        assert all(response.summary.speculation.fallback_rounds for response in responses)


async def test_hanging_drafter_is_avoided(
    stack: Stack, orchestrator: InProcess, cases: list[Case], expected: list[list[int]]
) -> None:
    """A round waits for the draft timeout and continues without a draft; the drafter is avoided."""
    fake = fakes.FakeDrafter(await drafter_info(stack), fakes.no_draft, delay_s=3600)
    add = drafter_pb2_grpc.add_DrafterServicer_to_server
    async with (
        fakes.listening(add, fake) as drafter,
        orchestrator(drafters=drafter, draft_timeout_s=0.2) as address,
    ):
        lost_before = HOP_TIME.labels("lost")._value.get()
        responses = await answers(address, cases[:4], "speculative")
        assert HOP_TIME.labels("lost")._value.get() >= lost_before + 0.2
    assert not first_difference(expected[:4], tokens(responses))
    assert all(response.summary.speculation.fallback_rounds for response in responses)


async def test_unanswering_drafter_delays_no_token(
    stack: Stack, orchestrator: InProcess, cases: list[Case], expected: list[list[int]]
) -> None:
    """A drafter that accepts connections and never answers delays no token."""
    async with (
        fakes.black_hole() as drafter,
        orchestrator(drafters=drafter, draft_timeout_s=20.0) as address,
    ):
        started = time.monotonic()
        responses = await answers(address, cases[:4], "speculative")
        assert time.monotonic() - started < 15
    assert not first_difference(expected[:4], tokens(responses))
    assert all(response.summary.speculation.fallback_rounds for response in responses)


async def test_hanging_verifier_holds_a_request_until_its_deadline(
    stack: Stack, orchestrator: InProcess, cases: list[Case]
) -> None:
    """The verifier gets the deadline, which ends the work on both sides; there is no retry."""
    add = verifier_pb2_grpc.add_VerifierServicer_to_server

    def end_counts() -> tuple[float, float]:
        """The counts of requests that exceeded their deadline and of cancelled ones."""
        deadline_exceeded, aborted = FAILURES.labels("deadline_exceeded"), SUCCESSES.labels("abort")
        return deadline_exceeded._value.get(), aborted._value.get()

    async with grpc.aio.insecure_channel(stack.processes["verifier"].address) as channel:
        flaky = fakes.FlakyVerifier(channel, "hang")
        async with (
            fakes.listening(add, flaky) as verifier,
            orchestrator(verifiers=verifier) as address,
            grpc.aio.insecure_channel(address) as client_channel,
        ):
            stub = generation_pb2_grpc.GenerationStub(client_channel)
            request = pb.GenerateRequest(parameters=cases[7].parameters("speculative"))
            deadline_exceeded, aborted = end_counts()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in stub.Generate(request, timeout=2.0):
                    pass
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert flaky.time_given is not None and flaky.time_given < 2.1  # gRPC rounds up
            await eventually(
                lambda: flaky.open_sessions == 0 and end_counts() != (deadline_exceeded, aborted)
            )
            assert flaky.spoiled == 1
            assert end_counts() == (deadline_exceeded + 1, aborted)


@pytest.mark.parametrize(
    ("strategy", "fault"),
    [
        *(("speculative", fault) for fault in FAULTS),
        *itertools.product(WITH_STATE, ["gone", "wrong position"]),
    ],
)
async def test_lost_verifier_sessions_are_reopened(
    stack: Stack,
    orchestrator: InProcess,
    cases: list[Case],
    expected: list[list[int]],
    strategy: str,
    fault: str,
) -> None:
    """Every third verdict is lost; the session is rebuilt from the committed tokens."""
    add = verifier_pb2_grpc.add_VerifierServicer_to_server
    async with grpc.aio.insecure_channel(stack.processes["verifier"].address) as channel:
        flaky = fakes.FlakyVerifier(channel, fault)
        async with (
            fakes.listening(add, flaky) as verifier,
            orchestrator(verifiers=verifier) as address,
        ):
            responses = await answers(address, cases[:6], strategy)
    assert flaky.spoiled > 0
    assert not first_difference(expected[:6], tokens(responses))
    assert all(response.summary.speculation.reopened_sessions for response in responses)


async def test_killed_verifier_is_replaced_by_another(
    stack: Stack,
    orchestrator: InProcess,
    cases: list[Case],
    expected: list[list[int]],
    tmp_path: Path,
) -> None:
    """SIGKILL of one of two verifiers; every request ends with the tokens it would have had."""
    flags = ["--listen", "127.0.0.1:0", "--dtype", "float32"]
    spare = ForkedRole("verifier", flags, tmp_path)
    spare.start()
    try:
        await asyncio.to_thread(spare.wait_until_ready, float("inf"))
        both = f"{spare.address},{stack.processes['verifier'].address}"
        async with orchestrator(verifiers=both) as address:
            running = asyncio.create_task(answers(address, cases[:8], "speculative"))
            await asyncio.to_thread(wait_until_serving, spare.address)
            await asyncio.to_thread(wait_for_forwards, spare.address, FEW_ROUNDS)
            spare.kill()
            responses = await running
    finally:
        spare.kill()
        spare.stop()
    assert not first_difference(expected[:8], tokens(responses))
    assert any(response.summary.speculation.reopened_sessions for response in responses)


async def drafter_info(stack: Stack) -> object:
    async with grpc.aio.insecure_channel(stack.processes["drafter"].address) as channel:
        stub = drafter_pb2_grpc.DrafterStub(channel)
        return (await stub.Info(drafter_pb2.DrafterInfoRequest())).model
