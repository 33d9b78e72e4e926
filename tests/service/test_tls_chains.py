"""Intermediate authorities: both servers of an orchestrator trust exactly those they are given."""

from __future__ import annotations

from pathlib import Path

from draftloop.tls import ClientTls
from tests.service.test_tls import (
    answers,
    context,
    flags,
    http_answers,
    listening,
    listening_for_http,
    shown,
)
from tests.support.certificates import Authority


async def test_an_authority_below_another_is_trusted_by_itself(tmp_path: Path) -> None:
    """OpenSSL wants the root as well unless told otherwise; HTTP used to let no such client in."""
    root = Authority(tmp_path / "root", "root")
    ours = Authority(tmp_path / "ours", "ours", above=root)
    theirs = Authority(tmp_path / "theirs", "theirs", above=root)
    server, client, stranger = root.pair("server"), ours.pair("client"), theirs.pair("client")
    wants = flags(server, tls_client_ca=ours.ca)
    async with listening(**wants) as address:
        assert await answers(address, shown(root, client))
        assert not await answers(address, shown(root, stranger))
    async with listening_for_http(**wants) as address:
        assert await http_answers(address, context(root, client))
        assert not await http_answers(address, context(root, stranger))


async def test_a_chain_is_shown_whole(tmp_path: Path) -> None:
    root = Authority(tmp_path / "root", "root")
    pair = Authority(tmp_path / "below", "below", above=root).pair("server")
    below = pair.certificate.with_name("below.pem").read_bytes()
    async with listening(**flags(pair)) as address:
        assert not await answers(address, ClientTls(ca=root.ca))
    pair.certificate.write_bytes(pair.certificate.read_bytes() + below)
    async with listening(**flags(pair)) as address:
        assert await answers(address, ClientTls(ca=root.ca))
    async with listening_for_http(**flags(pair)) as address:
        assert await http_answers(address, context(root))
