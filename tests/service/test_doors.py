"""An orchestrator's gRPC and HTTP servers in this process, without a verifier."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from draftloop.config import bundled_model
from orchestrator import metrics
from orchestrator.config import OrchestratorSettings
from orchestrator.deployment import Deployment
from orchestrator.doors import OrchestratorServer
from orchestrator.front import Front
from orchestrator.gateway import connections, envelope
from orchestrator.gateway.errors import INTERNAL
from orchestrator.gateway.gateway import Gateway
from orchestrator.gateway.server import HttpServer
from orchestrator.key_file import KeyEntry, hash_of, new_key
from orchestrator.replicas import Replica
from protos import verifier_pb2, verifier_pb2_grpc
from tests.faults import fakes
from tests.service.sessions import open_verifier
from tests.support.gateway import gateway
from tests.support.waiting import eventually

LIMIT_S = 60.0
STATUS = health_pb2.HealthCheckResponse.ServingStatus
LOOPBACK = "127.0.0.1:0"


@contextlib.asynccontextmanager
async def open_doors(**settings: Any) -> AsyncIterator[tuple[OrchestratorServer, HttpServer]]:
    """The servers, set to ready; the gRPC server also serves a scripted verifier's calls."""
    listens = {"listen": LOOPBACK, "http_listen": LOOPBACK, "tokenizer": bundled_model("verifier")}
    configured = OrchestratorSettings(**{**listens, "grace_period_s": 600, **settings})
    deployment = Deployment(configured)
    front = Front(deployment)
    http = HttpServer(configured, front)
    server = OrchestratorServer("any", configured, http, front)
    verifier_pb2_grpc.add_VerifierServicer_to_server(fakes.ScriptedVerifier(), server.server)
    await server.listen()
    await server.ready()
    try:
        async with asyncio.timeout(LIMIT_S):
            yield server, http
    finally:
        await server.server.stop(0)
        await http.stop()
        await deployment.stop()


async def test_service_health_follows_the_verifiers_and_liveness_does_not() -> None:
    """The service's health is that of `/ready`; load balancers and `draftloop health` read it."""
    async with (
        open_doors() as (server, http),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        verifiers = http.gateway.front.deployment.replicas()["verifier"]
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="any"))
        for status, joins in (("NOT_SERVING", True), ("SERVING", False), ("NOT_SERVING", None)):
            while STATUS.Name((await watch.read()).status) != status:
                pass
            alive = await stub.Check(health_pb2.HealthCheckRequest())
            assert alive.status == STATUS.Value("SERVING")
            if joins is not None:
                replica = Replica("a", channel) if joins else next(iter(verifiers))
                (verifiers.join if joins else verifiers.leave)(replica)
        watch.cancel()


@contextlib.asynccontextmanager
async def running_call(server: OrchestratorServer) -> AsyncIterator[Any]:
    """A call that runs until `end` closes it."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        call = verifier_pb2_grpc.VerifierStub(channel).Verify()
        await call.write(open_verifier())
        await call.read()
        yield call


async def end_call(call: Any) -> None:
    await call.write(verifier_pb2.VerifyRequest(close=verifier_pb2.CloseVerifierSession()))
    assert await call.code() is grpc.StatusCode.OK


JSON = {"content-type": "application/json"}
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
HALF_A_BODY = HEAD + b"content-type: application/json\r\ncontent-length: 99\r\n\r\n{"
WHOLE = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@contextlib.asynccontextmanager
async def connection_with(
    http: HttpServer, data: bytes
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which these bytes were sent."""
    host, _, port = http.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    await writer.drain()
    try:
        yield reader, writer
    finally:
        writer.close()


@pytest.mark.parametrize("data", [b"", HEAD], ids=["nothing", "half a head"])
async def test_silent_connections_are_closed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Silent connections are closed, as each takes one of the process's file descriptors."""
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.2)
    async with open_doors() as (_, http), connection_with(http, data) as (reader, writer):
        assert await reader.read() == b""
    async with open_doors() as (_, http), connection_with(http, WHOLE) as (reader, writer):
        await reader.readuntil(b"}")
        writer.write(data or b"GET")
        assert await reader.read() == b""


async def test_bytes_after_a_refused_head_are_not_parsed() -> None:
    """The head alone would be refused; what follows it is not parsed and logs no error."""
    refused = HEAD + b"content-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\nno number\r\n"
    with capture_logs() as lines:
        async with open_doors() as (_, http), connection_with(http, refused) as (reader, _):
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    assert not [line for line in lines if line["log_level"] == "error"]


async def test_connection_is_closed_after_a_body_with_two_lengths() -> None:
    """A proxy may use the other length, and take the rest for another client's request."""
    lengths = b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"
    twice = HEAD + lengths + b"0\r\n\r\n" + WHOLE
    async with open_doors() as (_, http), connection_with(http, twice) as (reader, _):
        assert (await reader.read()).count(b"HTTP/1.1 ") == 1


async def test_internal_error_has_cors_headers_and_request_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An internal error has CORS headers and the request id. It used to have neither."""

    def broken(*_: object) -> None:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(Gateway, "require_model", broken)
    page, count = "http://page.example", metrics.HTTP_REQUESTS.labels("/tokenize", "500")
    headers = {"Origin": page, "X-Request-Id": "mine"}
    before = count._value.get()
    with capture_logs() as lines:
        async with (
            open_doors(http_allowed_origins=page) as (_, http),
            httpx.AsyncClient() as client,
        ):
            answer = await client.post(
                f"http://{http.address}/tokenize", json={"prompt": "a"}, headers=headers
            )
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == INTERNAL
    assert answer.headers["access-control-allow-origin"] == page
    assert answer.headers["x-request-id"] == "mine"
    assert count._value.get() == before + 1
    assert [line["event"] for line in lines].count("unforeseen error") == 1


async def test_incomplete_body_is_refused_on_drain_and_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_doors() as (server, http), connection_with(http, HALF_A_BODY) as (reader, _):
        await eventually(lambda: http.busy)
        draining = asyncio.create_task(server.drain())
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        await draining
    monkeypatch.setattr(envelope, "BODY_PIECE_TIMEOUT_S", 0.2)
    async with open_doors() as (_, http), connection_with(http, HALF_A_BODY) as (reader, _):
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 ") and b"request_timeout" in answer


async def test_refusal_reaches_a_client_that_sends_its_whole_body_first() -> None:
    """A refusal reaches a client that reads no answer before it has sent its whole body.

    OpenAI's and Anthropic's asynchronous clients are such. The connection used to be closed at
    once, and they reported a connection error.
    """
    async with open_doors() as (_, http):
        base = f"http://{http.address}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            with pytest.raises(openai.APIStatusError) as caught:
                await client.completions.create(model="verifier", prompt="x" * (20 << 20))
    assert caught.value.status_code == 413


@pytest.mark.parametrize("limits", [(0.2, 600, 600), (600, 0.2, 600), (600, 600, 1)])
async def test_body_of_a_refused_request_is_read_only_up_to_limits(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[float, ...]
) -> None:
    names = ("DISCARD_PIECE_TIMEOUT_S", "DISCARD_TIMEOUT_S", "MAX_DISCARD_BYTES")
    for name, limit in zip(names, limits, strict=True):
        monkeypatch.setattr(envelope, name, limit)
    long = HALF_A_BODY.replace(b"99", b"9999999999")
    async with open_doors() as (_, http), connection_with(http, long) as (reader, _):
        assert (await reader.read()).startswith(b"HTTP/1.1 413 ")


async def test_health_and_metrics_stay_available_during_a_drain() -> None:
    async with (
        open_doors() as (server, http),
        running_call(server) as call,
        httpx.AsyncClient(base_url=f"http://{http.address}") as client,
    ):
        draining = asyncio.create_task(server.drain())
        await eventually(lambda: not http.gateway.ready)
        await asyncio.sleep(0.2)
        statuses = [(await client.get(f"/{path}")).status_code for path in ("health", "metrics")]
        assert statuses == [200, 200] and (await client.get("/ready")).status_code == 503
        await end_call(call)
        await draining
        with pytest.raises(httpx.TransportError):
            await client.get("/health")


def failure_counts() -> dict[str, float]:
    """The counts of failed requests by reason; reasons without any are left out."""
    (family,) = metrics.FAILURES.collect()
    return {
        sample.labels["reason"]: sample.value
        for sample in family.samples
        if sample.name.endswith("_total") and sample.value
    }


async def count_failure(client: httpx.AsyncClient, status: int, **more: Any) -> dict[str, float]:
    """What a request that gets this error status adds to the failure counts."""
    before = failure_counts()
    request = {"url": "/v1/completions", "json": {"prompt": "x"}, **more}
    assert (await client.post(**request)).status_code == status
    after = failure_counts()
    return {
        name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name)
    }


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        (400, {"json": {}}),
        (400, {"json": None, "content": b"{", "headers": JSON}),
        (400, {"json": None, "content": b"\xff", "headers": JSON}),
        (400, {"json": None, "content": b'{"prompt": "\\ud800"}', "headers": JSON}),
        (400, {"json": {"prompt": "x", "temperature": -1}}),
        (400, {"json": {"prompt": "x", "n": 1000}}),
        (404, {"json": {"prompt": "x", "model": "another"}}),
        (400, {"url": "/v1/chat/completions", "json": {"messages": 1}}),
    ],
)
async def test_every_client_error_is_counted_once(status: int, fields: dict[str, Any]) -> None:
    async with gateway() as (client, _):
        assert await count_failure(client, status, **fields) == {"invalid_input": 1}


async def test_request_refused_during_a_drain_is_counted() -> None:
    async with (
        open_doors() as (server, http),
        running_call(server) as call,
        httpx.AsyncClient(base_url=f"http://{http.address}") as client,
    ):
        draining = asyncio.create_task(server.drain())
        await eventually(lambda: not http.gateway.ready)
        assert await count_failure(client, 503) == {"unavailable": 1}
        await end_call(call)
        await draining


async def test_refused_keys_and_tenants_are_counted(tmp_path: Path) -> None:
    """Refused keys and tenants are not server faults, which the alert counts."""
    key = new_key()
    keys = tmp_path / "keys.toml"
    keys.write_text(KeyEntry(name="one", sha256=hash_of(key), tenant="acme").toml())
    with_key = {"authorization": f"Bearer {key}"}
    async with gateway(keys) as (client, _):
        assert await count_failure(client, 401) == {"unauthenticated": 1}
        other_tenant = {**with_key, "x-tenant": "other"}
        assert await count_failure(client, 403, headers=other_tenant) == {"forbidden": 1}
        assert await count_failure(client, 400, json={}, headers=with_key) == {"invalid_input": 1}
