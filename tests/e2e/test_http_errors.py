"""What the HTTP API refuses and how; time limits, clients that leave, a polite end."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from orchestrator.launcher import Stack
from orchestrator.role_process import RoleProcess
from tests.e2e.client import CALL_TIMEOUT_S
from tests.e2e.http_client import LONG, PROMPT, complete
from tests.support.forked import ForkedRole
from tests.support.sessions import open_sessions, wait_until_free


@pytest.mark.parametrize(("body", "param", "code"), [
    ({"prompt": ""}, "prompt", "invalid_value"),
    ({"prompt": ["a", ""]}, "prompt[1]", "invalid_value"),
    ({"prompt": [5, 4096]}, "prompt[1]", "invalid_value"),
    ({"prompt": [5] * 2048}, "prompt", "context_length_exceeded"),
    ({"prompt": ["a"] * 100}, "prompt", "invalid_value"),
    ({"prompt": ["a"] * 40, "n": 2}, "n", "invalid_value"),
    ({"prompt": "a", "temperature": -1}, "temperature", "invalid_value"),
    ({"prompt": "a", "stop": [""]}, "stop", "invalid_value"),
    ({"prompt": "a", "logit_bias": {"4096": 1}}, "logit_bias", "invalid_value"),
    ({"prompt": "a", "speculative": {"strategy": "magic"}}, "speculative.strategy",
     "invalid_value"),
    ({"prompt": "\ud800"}, "prompt", "invalid_value"),
    ({"prompt": "a", "\ud800": 1}, "?", "invalid_value"),
    ({"prompt": "a", "tools": []}, "tools", "unknown_parameter"),
])  # fmt: skip
def test_bad_input(http: httpx.Client, body: dict[str, Any], param: str, code: str) -> None:
    answer = http.post(
        "/v1/completions", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)
    assert error["type"] == "invalid_request_error"


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
def test_bodies_that_are_no_request(
    http: httpx.Client, content: bytes, kind: str, status: int
) -> None:
    headers = {"Content-Type": kind}
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
        answer = http.post(path, content=content, headers=headers)
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_body_of_unknown_length_is_limited(http: httpx.Client) -> None:
    chunks = (b" " * (1 << 16) for _ in range(80))
    answer = http.post(
        "/v1/completions", content=chunks, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 413


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/v1/completions", 405), ("GET", "/v1/nothing", 404), ("GET", "/v1/models/x", 404),
])  # fmt: skip
def test_wrong_turns(http: httpx.Client, method: str, path: str, status: int) -> None:
    answer = http.request(method, path)
    assert answer.status_code == status and answer.json()["error"]["message"]


def test_request_ids_come_back(http: httpx.Client) -> None:
    assert http.get("/health", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
    assert http.get("/health", headers={"X-Request-Id": "a" * 500}).headers["x-request-id"] != "a"


def test_a_time_limit(http: httpx.Client, stack: Stack) -> None:
    body = {"prompt": PROMPT, "max_tokens": LONG, "ignore_eos": True}
    answer = http.post("/v1/completions", json=body, headers={"X-Request-Timeout": "0.5"})
    assert answer.status_code == 504 and answer.json()["error"]["code"] == "timeout"
    refused = http.post("/v1/completions", json=body, headers={"X-Request-Timeout": "soon"})
    assert refused.status_code == 400
    wait_until_free(stack)


def test_the_error_in_a_stream(api: OpenAI, stack: Stack) -> None:
    """The status has been sent: the client raises what the event says.

    Without drafts, with which a fast machine has said it all by then.
    """
    body = {"ignore_eos": True, "speculative": {"strategy": "autoregressive"}}
    stream = complete(api, max_tokens=LONG, stream=True, extra_body=body,
                      extra_headers={"X-Request-Timeout": "1"})  # fmt: skip
    with pytest.raises(openai.APIError, match="deadline"):
        list(stream)
    wait_until_free(stack)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_frees_its_sessions(base: str, stack: Stack, streamed: bool) -> None:
    body = {"prompt": PROMPT, "max_tokens": LONG, "ignore_eos": True, "stream": streamed, "n": 2}
    wait_until_free(stack)
    with httpx.Client(base_url=base, timeout=2 if not streamed else CALL_TIMEOUT_S) as leaving:
        if streamed:
            with leaving.stream("POST", "/v1/completions", json=body) as answer:
                chunks = answer.iter_bytes()
                next(chunks)
                assert open_sessions(stack) > 0
        else:
            with pytest.raises(httpx.ReadTimeout):
                leaving.post("/v1/completions", json=body)
    wait_until_free(stack)


@asynccontextmanager
async def _own(stack: Stack, folder: Path, *flags: str) -> AsyncIterator[tuple[RoleProcess, str]]:
    """An orchestrator of the test's own, in front of the stack's services."""
    address = folder / "http"
    services = ["--verifiers", stack.processes["verifier"].address]
    services += ["--drafters", stack.processes["drafter"].address]
    listens = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
    role = ForkedRole(
        "orchestrator", [*listens, *services, "--http-address-file", str(address), *flags], folder
    )
    role.start()
    try:
        role.wait_until_ready(time.monotonic() + 120)
        yield role, f"http://{address.read_text()}"
    finally:
        role.stop()


async def test_too_many_are_told_to_come_back_and_a_drain_is_polite(
    stack: Stack, tmp_path: Path
) -> None:
    """All choices of a request are admitted or none; SIGTERM lets the stream go on to its end."""
    flags = ("--max-requests", "2", "--served-model-name", "mine", "--grace-period-s", "60")
    body = {"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True, "seed": 1, "model": "mine"}
    async with (
        _own(stack, tmp_path, *flags) as (role, base),
        httpx.AsyncClient(base_url=base, timeout=CALL_TIMEOUT_S) as client,
    ):
        whole = (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]
        streamed = body | {"stream": True}
        async with client.stream("POST", "/v1/completions", json=streamed) as answer:
            lines = answer.aiter_lines()
            first = await anext(lines)
            full = await client.post("/v1/completions", json=body | {"n": 2})
            assert full.status_code == 429 and full.headers["retry-after"] == "1"
            assert full.json()["error"]["type"] == "rate_limit_error"
            role.kill(signal.SIGTERM)
            while (await client.get("/ready")).status_code == 200:
                time.sleep(0.01)
            refused = await client.post("/v1/completions", json=body)
            assert refused.status_code == 503 and refused.headers["retry-after"]
            events = [first] + [line async for line in lines]
        data = [line.removeprefix("data: ") for line in events if line.startswith("data: ")]
        assert data[-1] == "[DONE]"
        texts = [json.loads(one)["choices"][0]["text"] for one in data[:-1]]
        assert "".join(texts) == whole
        assert role.process is not None and role.process.wait(60) == 0


def test_without_a_verifier_nothing_is_ready(tmp_path: Path) -> None:
    """Health is given from the start; HTTP listens before the first verifier is found."""
    flags = ["--listen", "127.0.0.1:0", "--verifiers", "127.0.0.1:1"]
    role = ForkedRole("orchestrator", [*flags, "--log-format", "json"], tmp_path)
    role.start()
    try:
        while "waiting for a verifier" not in role.log_file.read_text():
            time.sleep(0.05)
        lines = [json.loads(x) for x in role.log_file.read_text().splitlines() if x[:1] == "{"]
        (told,) = [line for line in lines if line["event"] == "listening for HTTP"]
        base = f"http://{told['address']}"
        assert httpx.get(f"{base}/health").status_code == 200
        for answer in (
            httpx.get(f"{base}/ready"),
            httpx.get(f"{base}/v1/models"),
            httpx.post(f"{base}/v1/completions", json={"prompt": "x"}),
        ):
            assert answer.status_code == 503 and answer.headers["retry-after"]
    finally:
        role.stop()
