"""TLS servers whose address is not a name in their certificate.

Examples are a forwarded port, and a probe inside the container.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from benchmarks.services import connected
from draftloop.errors import DraftloopError
from orchestrator.batch.connection import connect
from orchestrator.cli import app
from tests.service.test_tls import flags, listening, serving_http
from tests.support.certificates import Authority

NAME = "draftloop.example.com"
UNDERSTOOD = "is no Draftloop orchestrator"


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """An authority that the environment names as trusted."""
    created = Authority(tmp_path / "ours")
    monkeypatch.setenv("DRAFTLOOP_TLS_CA", str(created.ca))
    return created


@pytest.mark.parametrize("command", [["info"], ["profile"], ["generate", "def a():"]])
async def test_command_line_verifies_the_configured_server_name(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """Only probes used to heed the name; other commands could not connect."""

    async def output_of(*more: str) -> str:
        words = [*command, "--server", address, *more]
        return (await asyncio.to_thread(CliRunner().invoke, app, words)).output

    async with listening(**flags(authority.pair("server", host=NAME))) as address:
        assert "does not name this host" in await output_of()
        assert UNDERSTOOD in await output_of("--tls-server-name", NAME)
        monkeypatch.setenv("DRAFTLOOP_TLS_SERVER_NAME", NAME)
        assert UNDERSTOOD in await output_of()
        with pytest.raises(DraftloopError, match=UNDERSTOOD):
            await asyncio.to_thread(_request_info, address)


def _request_info(address: str) -> None:
    with connected(address) as server:
        server.info()


async def test_batches_verify_the_configured_server_name(authority: Authority) -> None:
    async def answers(name: str) -> bool:
        async with connect(
            f"https://{address}", api_key=None, timeout_s=60, concurrency=1,
            tls_ca=authority.ca, tls_server_name=name,
        ) as client:  # fmt: skip
            try:
                return (await client.get("/health")).status_code == 200
            except httpx.ConnectError as error:
                assert "certificate" in str(error)
                return False

    async with serving_http(**flags(authority.pair("server", host=NAME))) as address:
        assert await answers(NAME)
        assert not await answers("")
        assert not await answers("somewhere.else")
