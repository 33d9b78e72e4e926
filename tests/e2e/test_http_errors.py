"""What the HTTP API refuses and how; time limits, clients that disconnect, graceful shutdown."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import socket
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
from openai import OpenAI

from orchestrator.launcher import Stack
from orchestrator.role_process import RoleProcess
from protos import generation_pb2 as pb
from protos import generation_pb2_grpc
from tests.e2e.client import CALL_TIMEOUT_S, Case, RetryInfo
from tests.e2e.http_client import LONG, MODEL, PROMPT, complete
from tests.support.forked import ForkedRole
from tests.support.rich_errors import detail
from tests.support.sessions import open_sessions, wait_until_free, work_stops
from tests.support.tcp_proxy import TcpProxy


@pytest.mark.parametrize(("body", "param", "code"), [
    ({"prompt": ""}, "prompt", "invalid_value"),
    ({"prompt": ["a", ""]}, "prompt[1]", "invalid_value"),
    ({"prompt": [5, 4096]}, "prompt[1]", "invalid_value"),
    ({"prompt": [5] * 2048}, "prompt", "context_length_exceeded"),
    ({"prompt": ["a"] * 300}, "prompt", "invalid_value"),
    ({"prompt": ["a"] * 200, "n": 2}, "n", "invalid_value"),
    ({"prompt": "a", "temperature": -1}, "temperature", "invalid_value"),
    ({"prompt": "a", "stop": [""]}, "stop", "invalid_value"),
    ({"prompt": "a", "logit_bias": {"4096": 1}}, "logit_bias", "invalid_value"),
    ({"prompt": "a", "speculative": {"strategy": "magic"}}, "speculative.strategy",
     "invalid_value"),
    ({"prompt": "\ud800"}, "prompt", "invalid_value"),
    ({"prompt": "a", "\ud800": 1}, "?", "invalid_value"),
    ({"prompt": "a", "tools": []}, "tools", "unknown_parameter"),
])  # fmt: skip
def test_invalid_input_is_refused_with_its_field(
    http: httpx.Client, body: dict[str, Any], param: str, code: str
) -> None:
    answer = http.post(
        "/v1/completions", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)
    assert error["type"] == "invalid_request_error"


def test_max_tokens_beyond_the_context_ends_at_the_context(api: OpenAI) -> None:
    """A client may ask for "as many as possible": the output ends where the context does."""
    prompt = [5] * 2030
    most = complete(api, prompt=prompt, max_tokens=2**31 - 1, extra_body={"ignore_eos": True})
    fitting = complete(api, prompt=prompt, max_tokens=18, extra_body={"ignore_eos": True})
    assert most.choices[0].text == fitting.choices[0].text
    assert most.choices[0].finish_reason == "length" and most.usage.completion_tokens == 18


def test_health_is_answered_while_a_long_text_is_tokenized(http: httpx.Client, base: str) -> None:
    """Health checks are answered again and again while the text is tokenized."""
    long = json.dumps({"prompt": "word " * 400_000})
    headers = {"Content-Type": "application/json"}
    with ThreadPoolExecutor(1) as pool:
        tokenizing = pool.submit(
            httpx.post, f"{base}/tokenize", content=long, headers=headers, timeout=120
        )
        answers = 0
        while not tokenizing.done():
            assert http.get("/health").status_code == 200
            answers += 1
    assert tokenizing.result().json()["count"] > 400_000 and answers > 5


def test_too_many_prompts_are_refused_before_being_read(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": ["word " * 50] * 5000})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt"


def test_answers_are_counted_by_route_and_status(http: httpx.Client) -> None:
    def count(route: str, status: int) -> float:
        line = f'draftloop_http_requests_total{{route="{route}",status="{status}"}} '
        matches = [text for text in http.get("/metrics").text.splitlines() if text.startswith(line)]
        return float(matches[0].split()[-1]) if matches else 0.0

    before = count("/v1/completions", 400), count("unknown", 404)
    http.post("/v1/completions", json={"prompt": ""})
    http.get("/nowhere")
    assert (count("/v1/completions", 400), count("unknown", 404)) == (before[0] + 1, before[1] + 1)


async def test_client_leaving_before_an_answer_is_not_counted_as_failure(
    base: str, http: httpx.Client
) -> None:
    def failures() -> list[str]:
        lines = http.get("/metrics").text.splitlines()
        return [x for x in lines if x.startswith("draftloop_http_requests_total") and '"500"' in x]

    before = failures()
    new = [1 + 37 * place % 4000 for place in range(2000)]  # no cached prefix has any of it
    body = {"prompt": new, "max_tokens": 4, "stream": True}
    timeout = httpx.Timeout(CALL_TIMEOUT_S, read=0.02)
    async with httpx.AsyncClient(base_url=base, timeout=timeout) as client:
        with pytest.raises(httpx.TimeoutException):
            await client.post("/v1/completions", json=body)
    await asyncio.sleep(1.0)
    assert failures() == before


def test_request_id_is_in_the_log(http: httpx.Client, stack: Stack) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    http.post("/v1/completions", json=body, headers={"X-Request-Id": "my-own-id"})
    lines = stack.processes["orchestrator"].log_file.read_text().splitlines()
    assert any("my-own-id" in line and "generated" in line for line in lines)


def test_grammar_refused_by_the_verifier_names_the_clients_field(api: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(api, extra_body={"structured_outputs": {"grammar": "start: start"}})
    assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize(("content", "kind", "status"), [
    (b"{", "application/json", 400),
    (b"", "application/json", 400),
    (b"[]", "application/json", 400),
    (b"\xff", "application/json", 400),
    (b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}", "application/json", 400),
    (b"[" * 100_000, "application/json", 400),
    (b'{"prompt": "x"}', "text/plain", 400),
    (b"x" * (5 << 20), "application/json", 413),
])  # fmt: skip
def test_invalid_bodies_are_refused(
    http: httpx.Client, content: bytes, kind: str, status: int
) -> None:
    headers = {"Content-Type": kind}
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
        answer = http.post(path, content=content, headers=headers)
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_compressed_bodies_are_refused(http: httpx.Client) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = http.post("/v1/completions", content=gzip.compress(b"{}"), headers=headers)
    assert answer.status_code == 415 and "content-encoding" in answer.json()["error"]["message"]


def test_upgrade_offer_does_not_lose_the_body(http: httpx.Client) -> None:
    """Java clients offer to upgrade to HTTP/2 with the first request on a connection."""
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMA"}
    answer = http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}, headers=offer)
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 2


def test_http_1_0_clients_get_streams_without_chunks(base: str) -> None:
    """HTTP/1.0 has no chunked encoding: the stream ends with the connection."""
    address = base.removeprefix("http://").split(":")
    body = b'{"prompt": "a", "max_tokens": 2, "stream": true}'
    head = [
        "POST /v1/completions HTTP/1.0", "Content-Type: application/json",
        f"Content-Length: {len(body)}", "", "",
    ]  # fmt: skip
    with socket.create_connection((address[0], int(address[1])), CALL_TIMEOUT_S) as connection:
        connection.sendall("\r\n".join(head).encode() + body)
        with connection.makefile("rb") as answer:
            response = answer.read()
    headers, _, events = response.partition(b"\r\n\r\n")
    assert b"chunked" not in headers and events.startswith(b"data: {")
    assert events.endswith(b"data: [DONE]\n\n")


def test_body_of_unknown_length_is_limited(http: httpx.Client) -> None:
    chunks = (b" " * (1 << 16) for _ in range(80))
    answer = http.post(
        "/v1/completions", content=chunks, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 413


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/v1/completions", 405), ("GET", "/v1/nothing", 404), ("GET", "/v1/models/x", 404),
])  # fmt: skip
def test_unknown_routes_and_methods(
    http: httpx.Client, method: str, path: str, status: int
) -> None:
    answer = http.request(method, path)
    assert answer.status_code == status and answer.json()["error"]["message"]


@pytest.mark.parametrize("path", [
    "/", "/health", "/ready", "/v1/models", f"/v1/models/{MODEL}", "/metrics", "/version",
    "/playground/", "/v1/completions", "/nowhere",
])  # fmt: skip
def test_head_requests_have_no_body(http: httpx.Client, path: str) -> None:
    """HEAD answers as GET does, without a body. The next answer would otherwise begin with it."""
    get_answer, head_answer = http.get(path), http.head(path)
    assert (head_answer.status_code, head_answer.content) == (get_answer.status_code, b"")
    assert head_answer.headers.get("content-type") == get_answer.headers.get("content-type")
    assert http.get("/health").status_code == 200


def test_request_ids_are_returned(http: httpx.Client) -> None:
    assert http.get("/health", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
    other = http.get("/health", headers={"X-Request-Id": "a" * 500}).headers["x-request-id"]
    assert len(other) <= 128 and "aa" not in other


# No drafts: with them a fast machine finishes before the client can leave.
SLOWLY: dict[str, Any] = {
    "prompt": PROMPT, "max_tokens": LONG, "ignore_eos": True,
    "speculative": {"strategy": "autoregressive"},
}  # fmt: skip


def test_request_timeout(http: httpx.Client, stack: Stack) -> None:
    body = SLOWLY
    with work_stops(stack, LONG):
        answer = http.post("/v1/completions", json=body, headers={"X-Request-Timeout": "0.5"})
        assert answer.status_code == 504 and answer.json()["error"]["code"] == "timeout"
        refused = http.post("/v1/completions", json=body, headers={"X-Request-Timeout": "soon"})
        assert refused.status_code == 400


def test_error_event_in_a_stream(api: OpenAI, stack: Stack) -> None:
    """The status has been sent already, so the client raises the error of the stream's event."""
    body = {name: SLOWLY[name] for name in ("ignore_eos", "speculative")}
    with work_stops(stack, LONG):
        stream = complete(api, max_tokens=LONG, stream=True, extra_body=body,
                          extra_headers={"X-Request-Timeout": "0.7"})  # fmt: skip
        with pytest.raises(openai.APIError, match="deadline"):
            list(stream)


@pytest.mark.parametrize("streamed", [True, False])
def test_disconnected_client_frees_its_sessions(base: str, stack: Stack, streamed: bool) -> None:
    body = {**SLOWLY, "stream": streamed, "n": 2}
    wait_until_free(stack)
    timeout = httpx.Timeout(CALL_TIMEOUT_S, read=CALL_TIMEOUT_S if streamed else 0.5)
    with work_stops(stack, LONG), httpx.Client(base_url=base, timeout=timeout) as client:
        if streamed:
            with client.stream("POST", "/v1/completions", json=body) as answer:
                chunks = answer.iter_bytes()
                next(chunks)
                assert open_sessions(stack) > 0
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/completions", json=body)


@asynccontextmanager
async def _own_orchestrator(
    stack: Stack, folder: Path, *flags: str, verifier: str = ""
) -> AsyncIterator[tuple[RoleProcess, str]]:
    """An orchestrator for one test, on the stack's services or on another verifier."""
    address = folder / "http"
    services = ["--verifiers", verifier or stack.processes["verifier"].address]
    services += ["--drafters", stack.processes["drafter"].address]
    listen_flags = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
    role = ForkedRole(
        "orchestrator",
        [*listen_flags, *services, "--http-address-file", str(address), *flags],
        folder,
    )
    role.start()
    try:
        role.wait_until_ready(time.monotonic() + 120)
        yield role, f"http://{address.read_text()}"
    finally:
        role.stop()


async def test_excess_requests_get_a_retry_hint_and_a_drain_ends_streams_normally(
    stack: Stack, tmp_path: Path
) -> None:
    """A request's choices are admitted all or none; after SIGTERM a running stream ends normally.

    The proxy slows the stream and holds it until all requests have been made, so that it cannot end
    before.
    """
    flags = ("--max-requests", "2", "--served-model-name", "mine", "--grace-period-s", "60")
    body = {"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True, "seed": 1, "model": "mine"}
    with TcpProxy(stack.processes["verifier"].address) as wire:
        async with (
            _own_orchestrator(stack, tmp_path, *flags, verifier=wire.address) as (role, base),
            httpx.AsyncClient(base_url=base, timeout=CALL_TIMEOUT_S) as client,
        ):
            whole = (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]
            streamed = body | {"stream": True, "speculative": SLOWLY["speculative"]}
            wire.delay_s = 0.05
            async with client.stream("POST", "/v1/completions", json=streamed) as answer:
                lines = answer.aiter_lines()
                first = await anext(lines)
                wire.hold()
                full = await client.post("/v1/completions", json=body | {"n": 2})
                assert full.status_code == 429 and full.headers["retry-after"] == "1"
                assert full.json()["error"]["type"] == "rate_limit_error"
                role.kill(signal.SIGTERM)
                while (await client.get("/ready")).status_code == 200:
                    time.sleep(0.01)
                refused = await client.post("/v1/completions", json=body)
                assert refused.status_code == 503 and refused.headers["retry-after"]
                wire.delay_s = 0.0
                wire.release()
                events = [first] + [line async for line in lines]
            data = [line.removeprefix("data: ") for line in events if line.startswith("data: ")]
            assert data[-1] == "[DONE]"
            texts = [json.loads(one)["choices"][0]["text"] for one in data[:-1]]
            assert "".join(texts) == whole
            assert role.process is not None and role.process.wait(60) == 0


async def test_requests_still_running_after_the_grace_period_get_an_error(
    stack: Stack, tmp_path: Path
) -> None:
    """Whole answers get 503, streams an error event, gRPC calls UNAVAILABLE with a retry hint.

    No connection is cut, and no request is counted as cancelled by its client.
    """
    body = {"prompt": PROMPT, "max_tokens": LONG, "ignore_eos": True, "seed": 1}
    plain = {**body, "speculative": {"strategy": "autoregressive"}}
    async with (
        _own_orchestrator(stack, tmp_path, "--grace-period-s", "0.2") as (role, base),
        httpx.AsyncClient(base_url=base, timeout=CALL_TIMEOUT_S) as client,
        grpc.aio.insecure_channel(role.address) as channel,
    ):
        case = Case(tuple(range(5, 9)), LONG)
        parameters = case.parameters("autoregressive", ignore_eos=True)
        calls = generation_pb2_grpc.GenerationStub(channel)
        unary = calls.GenerateOnce(pb.GenerateOnceRequest(parameters=parameters))
        pieces = calls.Generate(pb.GenerateRequest(parameters=parameters))
        await pieces.read()
        whole = asyncio.create_task(client.post("/v1/completions", json={**plain, "n": 8}))
        streamed = {**plain, "stream": True}
        async with client.stream("POST", "/v1/completions", json=streamed) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            role.kill(signal.SIGTERM)
            data = [line[6:] async for line in lines if line.startswith("data: ")]
        assert data[-1] == "[DONE]"
        assert json.loads(data[-2])["error"]["code"] == "service_unavailable"
        refused = await whole
        assert refused.status_code == 503 and refused.headers["retry-after"]
        for call in (unary, _read_to_end(pieces)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert detail(caught.value, RetryInfo).retry_delay.seconds
        assert role.process is not None and role.process.wait(60) == 0
    lines_of_log = [
        line for line in role.log_file.read_text().splitlines() if '"generated"' in line
    ]
    assert {json.loads(line)["outcome"] for line in lines_of_log} == {"unavailable"}


async def _read_to_end(pieces: Any) -> None:
    while await pieces.read() is not grpc.aio.EOF:
        pass


def test_nothing_but_health_is_ready_without_a_verifier(tmp_path: Path) -> None:
    """Before a verifier is found, HTTP listens and `/health` succeeds; all else answers 503."""
    flags = ["--listen", "127.0.0.1:0", "--verifiers", "127.0.0.1:1"]
    role = ForkedRole("orchestrator", [*flags, "--log-format", "json"], tmp_path)
    role.start()
    try:
        while "waiting for a verifier" not in role.log_file.read_text():
            time.sleep(0.05)
        lines = [json.loads(x) for x in role.log_file.read_text().splitlines() if x[:1] == "{"]
        (listening,) = [line for line in lines if line["event"] == "listening for HTTP"]
        base = f"http://{listening['address']}"
        assert httpx.get(f"{base}/health").status_code == 200
        for answer in (
            httpx.get(f"{base}/ready"),
            httpx.get(f"{base}/v1/models"),
            httpx.post(f"{base}/v1/completions", json={"prompt": "x"}),
        ):
            assert answer.status_code == 503 and answer.headers["retry-after"]
    finally:
        role.stop()
