"""The load test connects to a TLS server with the same variables as the command line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.services import connected
from draftloop.errors import DraftloopError, StartupFailure
from tests.service.test_tls import flags, listening
from tests.support.certificates import Authority


def request_info(address: str) -> None:
    with connected(address) as server:
        server.info()


async def test_client_certificate_is_shown_to_a_server_that_requires_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`draftloop generate` reads these variables; the load test used to read only the CA."""
    authority = Authority(tmp_path / "ours")
    client_pair = authority.pair("client")
    for name, file in (
        ("CA", authority.ca),
        ("CERTIFICATE", client_pair.certificate),
        ("KEY", client_pair.key),
    ):
        monkeypatch.setenv(f"DRAFTLOOP_TLS_{name}", str(file))
    async with listening(**flags(authority.pair("server"), tls_client_ca=authority.ca)) as address:
        with pytest.raises(DraftloopError, match="is no Draftloop orchestrator"):  # TLS works
            await asyncio.to_thread(request_info, address)
        monkeypatch.delenv("DRAFTLOOP_TLS_CA")
        with pytest.raises(StartupFailure, match="tls_ca: must be given together"):
            await asyncio.to_thread(request_info, address)
