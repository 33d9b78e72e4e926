"""`draftloop info` reports the state of the phrase log, by gRPC and over a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console
from typer.testing import CliRunner

from draftloop.phrase import Phrase
from orchestrator import terminal
from orchestrator.cli import app
from orchestrator.front import Front
from orchestrator.servicer import GenerationServicer, register
from phrase_store.log import LogOptions, open_log
from phrase_store.namespace import namespace_name
from phrase_store.records import encode
from protos import generation_pb2 as pb
from protos import generation_pb2_grpc
from tests.support.gateway import Described, gateway
from tests.support.model_info import deployment_info
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

PASSWORD = "open-sesame"
MODEL, TENANT = "aaaa", "acme"
RECORDS = [encode(number, [Phrase((1, 2), (3, number))]) for number in (4, 5, 6)]


@asynccontextmanager
async def orchestrator(**settings: Any) -> AsyncIterator[tuple[Described, str]]:
    """The deployment of an orchestrator in this process, and its gRPC address."""
    async with gateway(phrases_timeout_s=1, **settings) as (_, deployment):
        server = grpc.aio.server()
        register(GenerationServicer(Front(deployment)), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        yield deployment, f"127.0.0.1:{port}"
        await server.stop(0)


async def phrases_line(address: str) -> str:
    """The output's line on phrases."""

    def run() -> str:
        environment = {"COLUMNS": "300"}
        result = CliRunner().invoke(app, ["info", "--server", address], env=environment)
        assert result.exit_code == 0, result.output
        return result.output

    (line,) = [x for x in (await asyncio.to_thread(run)).splitlines() if x.startswith("phrases: ")]
    return line


async def test_info_shows_redis_phrase_log_before_use_connected_and_lost(tmp_path: Path) -> None:
    with RedisServer(tmp_path, f"requirepass {PASSWORD}") as redis:
        url = f"redis://:{PASSWORD}@127.0.0.1:{redis.port}"
        log = open_log(url, namespace_name(MODEL, TENANT), LogOptions())
        log.append(RECORDS)
        log.close()
        async with orchestrator(phrases_url=url, phrases_mib=2) as (deployment, address):
            empty = "0 records read; 0 of at most 8 namespaces with 0 entries in 0.0 MiB"
            line = f"phrases: redis, not used yet; {empty}, at most 2.0 MiB each"
            assert await phrases_line(address) == line

            namespace = deployment.store.namespace(MODEL, TENANT)
            assert await asyncio.to_thread(namespace.wait_replayed, 30)
            entries, size = namespace.index.entries, namespace.index.bytes / 2**20
            assert entries
            figures = f"namespaces with {entries} entries in {size:.1f} MiB, at most 2.0 MiB each"
            line = f"phrases: redis, connected; 3 records read; 1 of at most 8 {figures}"
            assert await phrases_line(address) == line

            redis.kill()
            await eventually(lambda: not namespace.figures().reachable)
            assert "redis, not connected for 1 of its namespaces; 3 records" in await phrases_line(
                address
            )

            async with grpc.aio.insecure_channel(address) as channel:
                stub = generation_pb2_grpc.GenerationStub(channel)
                info = await stub.Info(pb.GenerationInfoRequest())
            for secret in (PASSWORD, TENANT, str(redis.port)):
                assert secret.encode() not in info.SerializeToString()


async def test_info_reports_an_unreachable_log_as_not_connected(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path)
    async with orchestrator(phrases_url=redis.url) as (deployment, address):
        namespace = deployment.store.namespace(MODEL)
        await eventually(lambda: not namespace.figures().reachable)
        assert (await phrases_line(address)).startswith(
            "phrases: redis, not connected for 1 of its"
        )


async def test_info_reports_phrases_kept_in_the_process_alone() -> None:
    async with orchestrator() as (deployment, address):
        deployment.store.namespace(MODEL)
        line = await phrases_line(address)
        assert line.startswith("phrases: memory, of this process alone; 0 records read; 1 of at")


def test_info_without_phrase_figures() -> None:
    """`draftloop info` shows this for servers that are older than the field."""
    console = Console(width=300)
    with console.capture() as captured:
        terminal.show_info(console, deployment_info())
    assert "phrases: none\n" in captured.get()
