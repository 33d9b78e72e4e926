"""The verifier alone: sessions, replays, refused messages, freed slots."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftloop.rpc.server import RoleServer
from draftloop.runtime.service import ModelHost
from protos import verifier_pb2
from protos.verifier_pb2_grpc import VerifierStub
from tests.service.conftest import FINGERPRINT, SMALL, Start
from tests.service.sessions import (
    PROMPT,
    BadRequest,
    ErrorInfo,
    RetryInfo,
    open_verifier,
    sampling,
    send_and_read,
    verify,
    wait_until_slots_free,
)
from tests.support.rich_errors import detail
from tests.support.waiting import eventually
from verifier_service import servicer
from verifier_service.config import VerifierSettings

LENGTH = len(PROMPT)
WAIT_S = 30.0
CLOSE = verifier_pb2.VerifyRequest(close=verifier_pb2.CloseVerifierSession())


async def decode_without_drafts(stub: VerifierStub, tokens: int) -> list[int]:
    """Plain decoding through the service: a session without drafts."""
    call = stub.Verify()
    answer = await send_and_read(call, open_verifier())
    emitted = list(answer.verdict.emitted_token_ids)
    while len(emitted) < tokens:
        answer = await send_and_read(call, verify(LENGTH + len(emitted)))
        emitted.extend(answer.verdict.emitted_token_ids)
    await call.write(CLOSE)
    return emitted


async def test_session_follows_the_protocol(serve_verifier: Start) -> None:
    """First token on opening, correct drafts accepted, the answer to a repeated draft replayed."""
    async with serve_verifier() as (channel, host):
        stub = VerifierStub(channel)
        info = (await stub.Info(verifier_pb2.VerifierInfoRequest())).model
        assert info.vocabulary_fingerprint == FINGERPRINT
        assert {1, 8, 32} <= {point.tokens for point in info.cost_curve}
        expected = await decode_without_drafts(stub, 8)
        call = stub.Verify()
        first = await send_and_read(call, open_verifier())
        assert list(first.verdict.emitted_token_ids) == expected[:1]
        wrong_token = (expected[1] + 1) % info.vocabulary_size
        message = verify(LENGTH + 1, [wrong_token, *expected[1:4]], [-1, -1, 1, 2])
        answer = await send_and_read(call, message)
        assert list(answer.verdict.emitted_token_ids) == expected[1:5]
        assert list(answer.verdict.accepted_nodes) == [1, 2, 3]
        assert answer.verdict.root_prediction == expected[1]
        assert list(answer.verdict.node_predictions)[1:] == expected[2:5]
        assert answer.timings.forwards == 1
        repeated = await send_and_read(call, message)
        assert repeated == answer
        after = await send_and_read(call, verify(LENGTH + 5))
        assert list(after.verdict.emitted_token_ids) == expected[5:6]
        await call.write(CLOSE)
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        await wait_until_slots_free(host)


async def test_verdicts_carry_successors_when_requested(serve_verifier: Start) -> None:
    async with serve_verifier() as (channel, _):
        stub = VerifierStub(channel)
        call = stub.Verify()
        first = await send_and_read(
            call, open_verifier(successors=3, sampling=sampling(temperature=0))
        )
        assert len(first.verdict.successor_ids) == 3
        assert first.verdict.successor_ids[0] == first.verdict.root_prediction  # greedy
        answer = await send_and_read(call, verify(LENGTH + 1, [5, 6], [-1, 0]))
        verdict = answer.verdict
        assert len(verdict.successor_ids) == 3 * 3
        assert list(verdict.successor_ids)[::3] == [
            verdict.root_prediction, *verdict.node_predictions,
        ]  # fmt: skip
        call.cancel()
        plain_call = stub.Verify()
        assert not (await send_and_read(plain_call, open_verifier())).verdict.successor_ids
        plain_call.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send_and_read(stub.Verify(), open_verifier(successors=9))
        assert "successors" in str(refused.value.details())


async def test_reopened_session_continues_with_the_same_tokens(
    serve_verifier: Start,
) -> None:
    """Penalties need to know where the prompt ends in a reopened session."""
    async with serve_verifier(prefill_chunk_tokens=16) as (channel, _):
        stub = VerifierStub(channel)
        strict: dict[str, Any] = {
            "sampling": sampling(presence_penalty=1.0, repetition_penalty=1.3)
        }
        call = stub.Verify()
        emitted = list(
            (await send_and_read(call, open_verifier(**strict))).verdict.emitted_token_ids
        )
        for _ in range(7):
            answer = await send_and_read(call, verify(LENGTH + len(emitted)))
            emitted.extend(answer.verdict.emitted_token_ids)
        call.cancel()
        reopened = stub.Verify()
        answer = await send_and_read(reopened, open_verifier([*PROMPT, *emitted[:5]], **strict))
        assert list(answer.verdict.emitted_token_ids) == emitted[5:6]
        reopened.cancel()


async def test_penalties_count_drafted_tokens_up_to_a_node(serve_verifier: Start) -> None:
    """With a negative penalty each token makes itself likelier: missing the last would show."""
    async with serve_verifier() as (channel, _):
        stub = VerifierStub(channel)
        rising: dict[str, Any] = {"sampling": sampling(frequency_penalty=-2.0)}
        plainly, drafted = stub.Verify(), stub.Verify()
        emitted = list(
            (await send_and_read(plainly, open_verifier(**rising))).verdict.emitted_token_ids
        )
        for _ in range(12):
            answer = await send_and_read(plainly, verify(LENGTH + len(emitted)))
            emitted.extend(answer.verdict.emitted_token_ids)
        await send_and_read(drafted, open_verifier(**rising))
        answer = await send_and_read(drafted, verify(LENGTH + 1, emitted[1:12]))
        assert list(answer.verdict.emitted_token_ids) == emitted[1:13]
        plainly.cancel()
        drafted.cancel()


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (open_verifier([]), "token_ids"),
        (open_verifier([1, 4096]), "token_ids[1]"),
        (open_verifier([1] * 2048), "token_ids"),
        (open_verifier(prompt_length=0), "prompt_length"),
        (open_verifier(sampling=sampling(temperature=-1)), "temperature"),
        (open_verifier(sampling=sampling(temperature=float("nan"))), "temperature"),
        (open_verifier(sampling=sampling(top_p=1.5)), "top_p"),
        (open_verifier(sampling=sampling(min_p=-0.1)), "min_p"),
        (open_verifier(sampling=sampling(presence_penalty=3)), "presence_penalty"),
        (open_verifier(sampling=sampling(logit_bias={5000: 1.0})), "logit_bias"),
        (open_verifier(sampling=sampling(grammar={"regex": "(a"})), "grammar.regex"),
        (open_verifier(sampling=sampling(grammar={"json_schema": "{"})), "grammar.json_schema"),
        (open_verifier(sampling=sampling(grammar={})), "grammar"),
        (verify(LENGTH), "kind"),
    ],
)
async def test_invalid_opening_is_refused_with_the_field(
    serve_verifier: Start, message: verifier_pb2.VerifyRequest, field: str
) -> None:
    async with serve_verifier() as (channel, host):
        call = VerifierStub(channel).Verify()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send_and_read(call, message)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert detail(refused.value, BadRequest).field_violations[0].field == field
        assert field in (refused.value.details() or "")
        await wait_until_slots_free(host)


@pytest.mark.parametrize(
    ("token_ids", "parents", "field"),
    [
        ([1, 2], [-1, 1], "draft.parents[1]"),
        ([1, 2], [0, -1], "draft.parents[0]"),
        ([1, 9999], [-1, 0], "draft.token_ids[1]"),
        ([3, 3], [-1, -1], "draft.token_ids"),
        (list(range(17)), list(range(-1, 16)), "draft.token_ids"),
        ([1, 2], [-1], "draft.parents"),
    ],
)
async def test_invalid_draft_is_refused_with_the_field(
    serve_verifier: Start, token_ids: list[int], parents: list[int], field: str
) -> None:
    async with serve_verifier() as (channel, host):
        call = VerifierStub(channel).Verify()
        await send_and_read(call, open_verifier())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send_and_read(call, verify(LENGTH + 1, token_ids, parents))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert detail(refused.value, BadRequest).field_violations[0].field == field
        await wait_until_slots_free(host)


async def test_prompt_logprobs_too_large_for_a_message_are_refused(serve_verifier: Start) -> None:
    """The client's fault: that used to look like a verifier that cannot be reached."""
    prompt = PROMPT * 15
    async with serve_verifier(max_message_bytes=1 << 16) as (channel, host):
        for count, fits in ((20, False), (2, True)):
            call = VerifierStub(channel).Verify()
            opening = open_verifier(prompt, prompt_length=len(prompt), prompt_logprobs=count)
            if fits:
                assert len((await send_and_read(call, opening)).prompt_logprobs.ranks) > 0
                call.cancel()
                continue
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await send_and_read(call, opening)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "those of 600 tokens take" in refused.value.details()
            field = detail(refused.value, BadRequest).field_violations[0].field
            assert field == "prompt_logprobs"
        await wait_until_slots_free(host)


async def test_stale_position_is_refused_with_the_committed_length(serve_verifier: Start) -> None:
    async with serve_verifier() as (channel, host):
        call = VerifierStub(channel).Verify()
        await send_and_read(call, open_verifier())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send_and_read(call, verify(LENGTH + 9))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert detail(refused.value, ErrorInfo).metadata["committed_length"] == str(LENGTH + 1)
        await wait_until_slots_free(host)


async def test_different_draft_at_an_answered_position_is_not_a_replay(
    serve_verifier: Start,
) -> None:
    """A replayed verdict would be about the nodes of the draft before."""
    async with serve_verifier() as (channel, host):
        call = VerifierStub(channel).Verify()
        await send_and_read(call, open_verifier())
        answer = await send_and_read(call, verify(LENGTH + 1, [5], [-1]))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send_and_read(call, verify(LENGTH + 1, [6], [-1]))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        now = LENGTH + 1 + len(answer.verdict.emitted_token_ids)
        assert detail(refused.value, ErrorInfo).metadata["committed_length"] == str(now)
        await wait_until_slots_free(host)


async def test_other_vocabulary_is_refused_with_both_fingerprints(
    serve_verifier: Start,
) -> None:
    async with serve_verifier() as (channel, _):
        call = VerifierStub(channel).Verify()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send_and_read(call, open_verifier(vocabulary_fingerprint="feedc0de"))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "feedc0de" in refused.value.details() and FINGERPRINT in refused.value.details()


async def test_idle_session_is_freed(serve_verifier: Start) -> None:
    async with serve_verifier(idle_timeout_s=1.0) as (channel, host):
        call = VerifierStub(channel).Verify()
        await send_and_read(call, open_verifier())
        assert host.admission.open_sessions == 1
        await wait_until_slots_free(host)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert detail(caught.value, ErrorInfo).reason == "SESSION_LOST"


async def test_cancelled_and_lost_streams_free_their_slots(serve_verifier: Start) -> None:
    async with serve_verifier() as (channel, host):
        calls = [VerifierStub(channel).Verify() for _ in range(3)]
        for call in calls:
            await send_and_read(call, open_verifier())
        assert host.admission.open_sessions == 3
        calls[0].cancel()
        await calls[1].done_writing()
        await channel.close()
        await wait_until_slots_free(host)


async def test_full_queue_is_refused_with_a_retry_hint(serve_verifier: Start) -> None:
    async with serve_verifier(max_sessions=1, max_waiting=1) as (channel, host):
        stub = VerifierStub(channel)
        holding, waiting, refused = stub.Verify(), stub.Verify(), stub.Verify()
        await send_and_read(holding, open_verifier())
        await waiting.write(open_verifier())
        await eventually(lambda: host.admission.waiting_sessions)
        with pytest.raises(grpc.aio.AioRpcError) as full:
            await send_and_read(refused, open_verifier())
        assert full.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert detail(full.value, RetryInfo).retry_delay.ToMilliseconds() > 0
        holding.cancel()
        answer = await waiting.read()
        assert len(answer.verdict.emitted_token_ids) == 1
        waiting.cancel()
        await wait_until_slots_free(host)


async def test_waiting_sessions_share_a_forward(serve_verifier: Start) -> None:
    async with serve_verifier() as (channel, _):
        calls = [VerifierStub(channel).Verify() for _ in range(4)]
        await asyncio.gather(*(send_and_read(call, open_verifier()) for call in calls))
        largest = 0
        for round_number in range(6):
            message = verify(LENGTH + 1 + round_number)
            answers = await asyncio.gather(*(send_and_read(call, message) for call in calls))
            largest = max(largest, *(answer.timings.batch_size for answer in answers))
            assert len({answer.verdict.root_prediction for answer in answers}) == 1
        assert largest > 1
        for call in calls:
            call.cancel()


async def test_health_answers_while_the_model_loads_and_runs() -> None:
    """Neither loading nor a forward pass blocks the event loop."""
    settings = VerifierSettings(**SMALL)
    server, host = RoleServer(servicer.SERVICE_NAME, settings), ModelHost(settings)
    servicer.register(servicer.VerifierServicer(host), server.server)
    await server.listen()
    loading = asyncio.create_task(host.start())
    async with grpc.aio.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)

        async def status(name: str) -> int:
            request = health_pb2.HealthCheckRequest(service=name)
            return int((await health.Check(request, timeout=5)).status)

        assert await status("") == health_pb2.HealthCheckResponse.SERVING
        assert await status(servicer.SERVICE_NAME) == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as early:
            await VerifierStub(channel).Info(verifier_pb2.VerifierInfoRequest())
        assert early.value.code() is grpc.StatusCode.UNAVAILABLE
        await loading
        await server.ready()
        assert await status(servicer.SERVICE_NAME) == health_pb2.HealthCheckResponse.SERVING
        gate = asyncio.Event()
        loop = asyncio.get_running_loop()

        def long_forward() -> None:
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()

        working = host.engine.call(long_forward)
        assert await status("") == health_pb2.HealthCheckResponse.SERVING
        assert not working.done()
        gate.set()
        await asyncio.wrap_future(working)
    await server.drain()
    await host.stop()


async def test_draft_leaves_room_for_the_bonus_token(serve_verifier: Start) -> None:
    """A draft that would fill the context is refused; with one node less, the verdict fills it."""
    async with serve_verifier(context_length=LENGTH + 4) as (channel, _):
        stub = VerifierStub(channel)
        expected = await decode_without_drafts(stub, 4)
        calls = [stub.Verify() for _ in range(2)]
        for call in calls:
            await send_and_read(call, open_verifier())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send_and_read(calls[0], verify(LENGTH + 1, expected[1:4], [-1, 0, 1]))
        assert "draft.parents: must leave room for the bonus token" in refused.value.details()
        answer = await send_and_read(calls[1], verify(LENGTH + 1, expected[1:3], [-1, 0]))
        assert list(answer.verdict.emitted_token_ids) == expected[1:4]
        calls[1].cancel()


async def test_session_ends_at_the_context_length(serve_verifier: Start) -> None:
    """No token comes from beyond the context, even if the client asks for more."""
    async with serve_verifier(context_length=LENGTH + 2) as (channel, host):
        call = VerifierStub(channel).Verify()
        await send_and_read(call, open_verifier())
        answer = await send_and_read(call, verify(LENGTH + 1))
        assert len(answer.verdict.emitted_token_ids) == 1
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send_and_read(call, verify(LENGTH + 2))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "committed_length: must be below the context length" in refused.value.details()
        await wait_until_slots_free(host)
