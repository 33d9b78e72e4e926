"""Intermediate authorities: both servers of an orchestrator trust exactly those they are given."""

from __future__ import annotations

from pathlib import Path

from draftloop.tls import ClientTls
from tests.service.test_tls import (
    client_context,
    client_tls,
    connects,
    flags,
    http_connects,
    listening,
    serving_http,
)
from tests.support.certificates import Authority


async def test_intermediate_authority_is_trusted_without_its_root(tmp_path: Path) -> None:
    """Unless configured otherwise, OpenSSL requires the root; HTTP used to admit no such client."""
    root = Authority(tmp_path / "root", "root")
    trusted = Authority(tmp_path / "ours", "ours", above=root)
    untrusted = Authority(tmp_path / "theirs", "theirs", above=root)
    server, client, stranger = root.pair("server"), trusted.pair("client"), untrusted.pair("client")
    options = flags(server, tls_client_ca=trusted.ca)
    async with listening(**options) as address:
        assert await connects(address, client_tls(root, client))
        assert not await connects(address, client_tls(root, stranger))
    async with serving_http(**options) as address:
        assert await http_connects(address, client_context(root, client))
        assert not await http_connects(address, client_context(root, stranger))


async def test_whole_certificate_chain_is_sent(tmp_path: Path) -> None:
    root = Authority(tmp_path / "root", "root")
    pair = Authority(tmp_path / "below", "below", above=root).pair("server")
    below = pair.certificate.with_name("below.pem").read_bytes()
    async with listening(**flags(pair)) as address:
        assert not await connects(address, ClientTls(ca=root.ca))
    pair.certificate.write_bytes(pair.certificate.read_bytes() + below)
    async with listening(**flags(pair)) as address:
        assert await connects(address, ClientTls(ca=root.ca))
    async with serving_http(**flags(pair)) as address:
        assert await http_connects(address, client_context(root))
