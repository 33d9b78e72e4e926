"""A role whose certificate expires while it runs: older connections last, and it is not killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftloop.rpc.channel import open_channel
from draftloop.rpc.health import main
from draftloop.rpc.server import RoleServer
from draftloop.tls import ClientTls
from orchestrator.config import OrchestratorSettings
from tests.support.certificates import LIFE, Authority

ALIVE = health_pb2.HealthCheckRequest()


async def test_a_liveness_probe_does_not_end_what_older_connections_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    pair = authority.pair("server")
    monkeypatch.setenv("DRAFTLOOP_TLS_CA", str(authority.ca))
    settings = OrchestratorSettings(
        listen="127.0.0.1:0", tls_certificate=pair.certificate, tls_key=pair.key
    )
    server = RoleServer("any", settings)
    await server.listen()
    try:
        async with open_channel(server.address, 1 << 20, ClientTls(ca=authority.ca)) as channel:
            older = health_pb2_grpc.HealthStub(channel)
            await older.Check(ALIVE, timeout=10)
            authority.pair("server", -2 * LIFE)
            assert await asyncio.to_thread(main, [server.address, "any"]) == 1
            assert await asyncio.to_thread(main, [server.address]) == 0
            assert "its certificate has expired" in capsys.readouterr().err
            await older.Check(ALIVE, timeout=10)
    finally:
        await server.server.stop(0)
