"""A client's time limit starts when its request arrives, not when it has been read."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import httpx
import pytest

from draftloop.deadline import Deadline
from draftloop.errors import Unavailable
from draftloop.request import GenerationRequest
from draftloop.rpc.interceptors import ErrorInterceptor
from orchestrator.front import Front
from orchestrator.gateway import unread
from orchestrator.loop import Generation
from orchestrator.metrics import FAILURES, SUCCESSES
from orchestrator.requests import RequestReader
from orchestrator.servicer import GenerationServicer, register
from orchestrator.tokenizer import Tokenizer
from protos import generation_pb2 as pb
from protos import generation_pb2_grpc
from tests.support.gateway import Described, gateway
from tests.support.grpc_context import FakeContext
from tests.support.model_info import model_info
from tests.support.waiting import eventually

BOMB = '{"type": "integer", "multipleOf": 999983}'  # takes seconds to be refused
BODY = {"prompt": "a", "structured_outputs": {"json": BOMB}}
SHORT_S, LONG_S = 0.3, 60.0
SHORT = {"X-Request-Timeout": str(SHORT_S)}
CHAT = [{"role": "user", "content": "a"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": CHAT},
    "/v1/messages/count_tokens": {"messages": CHAT},
    "/tokenize": {"messages": CHAT},
    "/detokenize": {"tokens": [5]},
}


@pytest.fixture(autouse=True)
def deadlines(monkeypatch: pytest.MonkeyPatch) -> list[Deadline]:
    """The deadline of every generation that is created; no verifier would run it."""
    recorded: list[Deadline] = []
    generation = Described.generation

    def record_deadline(
        self: Described, request: GenerationRequest, deadline: Deadline
    ) -> Generation:
        recorded.append(deadline)
        return generation(self, request, deadline)

    monkeypatch.setattr(Described, "generation", record_deadline)
    monkeypatch.setattr(Described, "model", model_info(context_length=64, stop_token_ids=(0,)))
    return recorded


@asynccontextmanager
async def grpc_stub() -> AsyncIterator[generation_pb2_grpc.GenerationStub]:
    async with gateway() as (_, deployment):
        server = grpc.aio.server(interceptors=[ErrorInterceptor()])
        register(GenerationServicer(Front(deployment)), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield generation_pb2_grpc.GenerationStub(channel)
        await server.stop(0)


def ended_counts() -> tuple[float, float]:
    """The counts of requests that exceeded their deadline and of cancelled ones."""
    exceeded, aborted = FAILURES.labels("deadline_exceeded"), SUCCESSES.labels("abort")
    return exceeded._value.get(), aborted._value.get()


def require_timeout_error(answer: httpx.Response) -> None:
    assert answer.status_code == 504, answer.text
    error = answer.json()["error"]
    assert (error["type"], error.get("code", "timeout")) == ("timeout_error", "timeout")


def grpc_request(bomb: str | None = None) -> pb.GenerateOnceRequest:
    parameters = pb.GenerationParameters(text="a")
    if bomb is not None:
        parameters.sampling.grammar.json_schema = bomb
    return pb.GenerateOnceRequest(parameters=parameters)


async def test_deadline_passes_while_a_grpc_request_is_read(
    deadlines: list[Deadline],
) -> None:
    """The request counts as late even if gRPC cancels the handler first."""
    async with grpc_stub() as stub:
        exceeded, aborted = ended_counts()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GenerateOnce(grpc_request(BOMB), timeout=SHORT_S)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: ended_counts() != (exceeded, aborted))
        assert ended_counts() == (exceeded + 1, aborted) and not deadlines


async def test_deadline_passes_while_an_http_request_is_read(
    deadlines: list[Deadline],
) -> None:
    async with gateway() as (client, _):
        exceeded, aborted = ended_counts()
        require_timeout_error(await client.post("/v1/completions", json=BODY, headers=SHORT))
        assert ended_counts() == (exceeded + 1, aborted) and not deadlines


async def wait_forever(*_: Any, **__: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("path", BODIES)
async def test_deadline_passes_while_waiting_for_a_busy_tokenizer(
    deadlines: list[Deadline], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Waiting for the tokenizer used to have no limit; only the steps after it had one."""
    for name in ("encode_async", "decode_async"):
        monkeypatch.setattr(Tokenizer, name, wait_forever)
    async with gateway() as (client, _), asyncio.timeout(LONG_S):
        exceeded, aborted = ended_counts()
        require_timeout_error(await client.post(path, json=BODIES[path], headers=SHORT))
        assert ended_counts() == (exceeded + 1, aborted) and not deadlines


async def test_deadline_passes_while_token_texts_are_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tokenizer, "token_texts", wait_forever)
    body = {"prompt": "a", "return_token_strs": True}
    async with gateway() as (client, _), asyncio.timeout(LONG_S):
        require_timeout_error(await client.post("/tokenize", json=body, headers=SHORT))


@pytest.mark.parametrize("path", BODIES)
async def test_deadline_passes_before_the_body_arrives(path: str) -> None:
    """The time counts from the head of the request. The body used to have unlimited time."""

    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await wait_forever()

    async with gateway() as (client, _), asyncio.timeout(LONG_S):
        exceeded, aborted = ended_counts()
        answer = await client.post(path, content=body(), headers=SHORT)
        require_timeout_error(answer)
        assert answer.headers["connection"] == "close"  # the rest of the body is not read
        assert ended_counts() == (exceeded + 1, aborted)


async def test_deadline_passes_while_a_long_body_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release = threading.Event()
    monkeypatch.setattr(unread, "_read", lambda *_: release.wait(LONG_S))
    body = {"prompt": "a" * (unread.LONG_BODY + 1)}
    async with gateway() as (client, _):
        exceeded, aborted = ended_counts()
        try:
            require_timeout_error(await client.post("/v1/completions", json=body, headers=SHORT))
            assert ended_counts() == (exceeded + 1, aborted)
        finally:
            release.set()


async def test_invalid_time_limit_is_refused() -> None:
    async with gateway() as (client, _):
        refused = await client.post("/tokenize", content=b"", headers={"X-Request-Timeout": "0"})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "x-request-timeout"
        assert (await client.get("/health", headers={"X-Request-Timeout": "0"})).status_code == 200


async def test_grpc_deadline_cancels_the_wait_for_the_tokenizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cancelled: list[str] = []

    async def wait_until_cancelled(*_: Any) -> None:
        try:
            await wait_forever()
        finally:
            cancelled.append("")

    for name in ("encode_async", "decode_async"):
        monkeypatch.setattr(Tokenizer, name, wait_until_cancelled)
    async with grpc_stub() as stub:
        for call, request in (
            (stub.Tokenize, pb.TokenizeRequest(text="a")),
            (stub.Detokenize, pb.DetokenizeRequest(token_ids=[5])),
            (stub.GenerateOnce, grpc_request()),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(request, timeout=SHORT_S)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: len(cancelled) == 3)


@pytest.fixture
def read_times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times at which requests began to be read."""
    times: list[float] = []
    read = RequestReader.read

    async def timed(*arguments: Any) -> GenerationRequest:
        times.append(time.monotonic())
        return await read(*arguments)

    monkeypatch.setattr(RequestReader, "read", timed)
    return times


async def test_time_limit_includes_reading_the_request(
    read_times: list[float], deadlines: list[Deadline]
) -> None:
    async with gateway() as (_, deployment):
        servicer: Any = GenerationServicer(Front(deployment))
        with pytest.raises(Unavailable):  # there is no verifier
            await servicer.GenerateOnce(grpc_request(), FakeContext(seconds=LONG_S))
    (started,), (deadline,) = read_times, deadlines
    assert deadline.at is not None and deadline.at < started + LONG_S


async def test_all_choices_of_an_http_request_share_one_deadline(
    read_times: list[float], deadlines: list[Deadline]
) -> None:
    """Each choice's time used to begin only when those before it had been read."""
    async with gateway() as (client, _):
        body, headers = {"prompt": ["a", "b"], "n": 2}, {"X-Request-Timeout": str(LONG_S)}
        await client.post("/v1/completions", json=body, headers=headers)
    assert len(deadlines) == len(read_times) == 4 and len(set(deadlines)) == 1
    at = deadlines[0].at
    assert at is not None and at < read_times[0] + LONG_S
