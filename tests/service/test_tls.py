"""TLS of a role's servers: trust, client certificates, renewal, unusable files, clear errors."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs
from typer.testing import CliRunner

from draftloop.client import NO_RETRY, AsyncClient
from draftloop.errors import StartupFailure, Unavailable
from draftloop.rpc.channel import open_channel
from draftloop.rpc.health import ProbeTls, main
from draftloop.rpc.server import RoleServer
from draftloop.tls import ClientTls
from orchestrator.addresses import AddressBook
from orchestrator.cli import app
from orchestrator.clients import verifier_info
from orchestrator.config import OrchestratorSettings
from orchestrator.deployment import Deployment
from orchestrator.discovery import Discovery, ServiceInfo
from orchestrator.front import Front
from orchestrator.gateway.server import HttpServer
from tests.support.certificates import LIFE, Authority, Pair
from tests.support.ports import quiet_port
from tests.support.waiting import eventually


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "theirs", "stranger")


@asynccontextmanager
async def listening(**options: Any) -> AsyncIterator[str]:
    server = RoleServer("any", OrchestratorSettings(**{"listen": "127.0.0.1:0", **options}))
    await server.listen()
    try:
        yield server.address
    finally:
        await server.server.stop(0)


async def connects(address: str, tls: ClientTls | None, server_name: str = "") -> bool:
    """Whether a new connection gets an answer."""
    async with open_channel(address, 1 << 20, tls, server_name) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE, error
            return False
    return True


def flags(pair: Pair, **more: Path) -> dict[str, Path]:
    return {"tls_certificate": pair.certificate, "tls_key": pair.key, **more}


def client_tls(authority: Authority, pair: Pair) -> ClientTls:
    return ClientTls(ca=authority.ca, certificate=pair.certificate, key=pair.key)


async def test_only_servers_of_the_authority_are_trusted(
    authority: Authority, stranger: Authority
) -> None:
    async with listening(**flags(authority.pair("server"))) as address:
        assert await connects(address, ClientTls(ca=authority.ca))
        assert await connects(address, ClientTls(ca=authority.ca), "localhost")
        assert not await connects(address, ClientTls(ca=authority.ca), "somewhere.else")
        assert not await connects(address, ClientTls(ca=stranger.ca))
        assert not await connects(address, None), "plaintext must not be understood"


async def test_clients_need_a_certificate_when_a_client_authority_is_set(
    authority: Authority, stranger: Authority
) -> None:
    async with listening(**flags(authority.pair("server"), tls_client_ca=authority.ca)) as address:
        assert await connects(address, client_tls(authority, authority.pair("client")))
        assert not await connects(address, ClientTls(ca=authority.ca))
        assert not await connects(address, client_tls(authority, stranger.pair("client")))


async def test_probe_reads_its_tls_files_from_the_environment(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = authority.pair("probe")

    async def probed(**files: Path | str) -> int:
        for name, value in files.items():
            monkeypatch.setenv(f"DRAFTLOOP_TLS_{name}", str(value))
        return await asyncio.to_thread(main, [address])

    async with listening(**flags(authority.pair("server"), tls_client_ca=authority.ca)) as address:
        assert await probed() == 1
        assert await probed(CA=authority.ca) == 1
        assert await probed(CERTIFICATE=pair.certificate, KEY=pair.key) == 0
        assert await probed(SERVER_NAME="somewhere.else") == 1
        assert await probed(SERVER_NAME="localhost") == 0
        words = ["health", "orchestrator", "--server", address]
        result = await asyncio.to_thread(CliRunner().invoke, app, words)
        assert result.output.split()[-1] == "NOT_FOUND"  # TLS works
        assert await probed(CA=authority.ca.with_name("gone.pem")) == 2
        assert "gone.pem" in capsys.readouterr().err
        result = await asyncio.to_thread(CliRunner().invoke, app, words)
        assert result.exit_code == 2 and "gone.pem" in result.output


async def error_of(address: str, tls: ClientTls | None) -> str:
    """The client's error for a connection that fails."""
    async with AsyncClient(address, tls=tls, retry=NO_RETRY) as client:
        with pytest.raises(Unavailable) as caught:
            await client.info()
    return str(caught.value)


async def test_connection_error_names_the_tls_problem(
    authority: Authority, stranger: Authority
) -> None:
    """The error used to say that nothing listens there, whatever was wrong with TLS."""
    trusting = ClientTls(ca=authority.ca)
    hung_up = "hung up at once, as one does that wants TLS (--tls-ca), or to be shown another"
    async with listening(**flags(authority.pair("late", -2 * LIFE))) as address:
        assert "its certificate has expired" in await error_of(address, trusting)
    async with listening(**flags(authority.pair("early", 2 * LIFE))) as address:
        assert "its certificate is not valid yet" in await error_of(address, trusting)
    async with listening() as address:
        assert "it speaks no TLS; ask without --tls-ca" in await error_of(address, trusting)
    async with listening(**flags(authority.pair("server"))) as address:
        assert hung_up in await error_of(address, None)
        assert "of no authority in --tls-ca" in await error_of(address, ClientTls(ca=stranger.ca))
        mapped = address.replace("127.0.0.1", "[::ffff:127.0.0.1]")
        assert "does not name this host" in await error_of(mapped, trusting)
    async with listening(**flags(authority.pair("server"), tls_client_ca=authority.ca)) as address:
        assert hung_up in await error_of(address, trusting)
        expired = authority.pair("client", -2 * LIFE)
        assert hung_up in await error_of(address, client_tls(authority, expired))


async def test_orchestrator_logs_once_why_a_verifier_is_missing(authority: Authority) -> None:
    """A verifier that came back with a bad certificate used to be in no log."""
    port = quiet_port()
    channels: list[grpc.aio.Channel] = []

    async def ask(channel: grpc.aio.Channel, timeout_s: float) -> ServiceInfo:
        channels.append(channel)
        return await verifier_info(channel, timeout_s)

    discovery = Discovery(
        "verifier",
        AddressBook([f"127.0.0.1:{port}"]),
        open_channel=lambda to: open_channel(to.target, 1 << 20, ClientTls(ca=authority.ca)),
        ask_info=ask,
        require_compatible=lambda *_: None,
    )
    await discovery.poll_once()
    discovery.start_polling()
    expired = flags(authority.pair("late", -2 * LIFE))
    with capture_logs() as lines:
        async with listening(listen=f"127.0.0.1:{port}", **expired):
            await eventually(lambda: missing_reasons(lines))
            before = len(channels)
            await eventually(lambda: len(channels) > before + 4)
            await discovery.stop()
    (reason,) = missing_reasons(lines)
    assert reason.startswith("its certificate has expired")


def missing_reasons(lines: list[Any]) -> list[str]:
    return [line["reason"] for line in lines if line["event"] == "verifier missing"]


async def test_probe_prints_the_tls_problem(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRAFTLOOP_TLS_CA", str(authority.ca))
    async with listening(**flags(authority.pair("server", -2 * LIFE))) as address:
        assert await asyncio.to_thread(main, [address, "draftloop.v1.Generation"]) == 1
        out, err = capsys.readouterr()
        assert out.split()[-1] == "UNAVAILABLE" and "its certificate has expired" in err
        words = ["health", "orchestrator", "--server", address]
        result = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert result.exit_code == 1 and "its certificate has expired" in result.output


async def test_command_line_prints_the_tls_problem_in_one_line(authority: Authority) -> None:
    """Without gRPC's own lines about handshakes."""
    async with listening(**flags(authority.pair("server", -2 * LIFE))) as address:
        command = [sys.executable, "-m", "orchestrator.cli", "info", "--server", address]
        process = await asyncio.create_subprocess_exec(
            *command, "--tls-ca", str(authority.ca), stderr=asyncio.subprocess.PIPE
        )
        _, stderr = await process.communicate()
    assert stderr.decode().splitlines() == [
        f"draftloop: no connection to {address}: its certificate has expired; renew it there"
    ]


def test_client_certificate_without_its_key_is_refused(authority: Authority) -> None:
    """Given a certificate alone, gRPC used to abort the whole process, of probes and users."""
    pair = authority.pair("client")
    for certificate, key in ((pair.certificate, None), (None, pair.key)):
        client = ClientTls(ca=authority.ca, certificate=certificate, key=key)
        with pytest.raises(StartupFailure, match="must be given together with tls_"):
            open_channel("127.0.0.1:1", 1 << 20, client)
        probe = ProbeTls(ca=authority.ca, certificate=certificate, key=key)
        with pytest.raises(StartupFailure, match="must be given together with tls_"):
            probe.channel("127.0.0.1:1")


def test_unusable_files_of_a_probe_are_named(authority: Authority) -> None:
    pair, other = authority.pair("client"), authority.pair("other")
    with pytest.raises(StartupFailure, match="must be a PEM certificate and its key"):
        ProbeTls(ca=authority.ca, certificate=pair.certificate, key=other.key).channel("here:1")
    with pytest.raises(StartupFailure, match="tls_ca: .*must hold PEM certificates"):
        ProbeTls(ca=pair.key).channel("here:1")


async def test_command_line_shows_its_client_certificate(authority: Authority) -> None:
    """An orchestrator may require it. Without a CA the certificate is an error."""
    pair = authority.pair("client")
    pair_flags = ["--tls-certificate", str(pair.certificate), "--tls-key", str(pair.key)]
    async with listening(**flags(authority.pair("server"), tls_client_ca=authority.ca)) as address:
        for command in (["info"], ["profile"], ["generate", "a"]):
            words = [*command, "--server", address, *pair_flags]
            trusting = [*words, "--tls-ca", str(authority.ca)]
            result = await asyncio.to_thread(CliRunner().invoke, app, trusting)
            assert "is no Draftloop orchestrator" in result.output  # TLS works
            result = await asyncio.to_thread(CliRunner().invoke, app, words)
            assert result.exit_code == 2 and "tls_ca: must be given together" in result.output


async def test_renewed_certificates_are_used_without_a_restart(
    authority: Authority, stranger: Authority
) -> None:
    pair = authority.pair("server")
    async with listening(**flags(pair)) as address:
        assert await connects(address, ClientTls(ca=authority.ca))
        renewed = stranger.pair("server")
        with capture_logs() as lines:
            pair.certificate.write_bytes(renewed.certificate.read_bytes())  # the key is still old
            assert await connects(address, ClientTls(ca=authority.ca))
            pair.key.write_bytes(renewed.key.read_bytes())
            assert await connects(address, ClientTls(ca=stranger.ca))
        events = [line["event"] for line in lines]
        assert events[0] == "certificates not renewed" and events[-1] == "certificates renewed"
        assert not await connects(address, ClientTls(ca=authority.ca))


async def test_missing_certificate_file_is_logged_once(authority: Authority) -> None:
    """A missing file used to be logged at every connection; probes connect every few seconds."""
    pair = authority.pair("server")
    key = pair.key.read_bytes()
    async with listening(**flags(pair)) as address:
        with capture_logs() as lines:
            pair.key.unlink()
            for _ in range(3):
                assert await connects(address, ClientTls(ca=authority.ca))
            pair.key.write_bytes(key)
            assert await connects(address, ClientTls(ca=authority.ca))
    events = [line["event"] for line in lines if line["event"].startswith("certificates")]
    assert events == ["certificates not renewed", "certificates renewed"]


async def test_unusable_tls_files_stop_the_start(authority: Authority, tmp_path: Path) -> None:
    good, other = authority.pair("server"), authority.pair("other")
    (tmp_path / "nothing.pem").write_text("nothing")
    cases: list[tuple[dict[str, Path], str]] = [
        (
            flags(Pair(tmp_path / "gone.pem", good.key)),
            "tls_certificate: .*gone.pem cannot be read",
        ),
        (flags(Pair(good.certificate, other.key)), "must be a PEM certificate and its key"),
        (flags(good, tls_client_ca=tmp_path / "nothing.pem"), "tls_client_ca: .*PEM certificates"),
    ]
    for options, words in cases:
        with pytest.raises(StartupFailure, match=words):
            async with listening(**options):
                pass


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tls-key", "k"], "tls_certificate must be given together with tls_key"),
        (["--tls-client-ca", "c"], "tls_certificate must be given together with tls_client_ca"),
        (["--services-tls-key", "k"], "services_tls_certificate must be given together"),
        (
            ["--services-tls-key", "k", "--services-tls-certificate", "c"],
            "services_tls_ca must be given together",
        ),
    ],
)
def test_incomplete_tls_settings_are_refused(arguments: list[str], words: str) -> None:
    with pytest.raises(StartupFailure, match=words) as caught:
        secret = ["--phrases-url", "redis://:hidden@host"]
        OrchestratorSettings.from_command_line([*arguments, *secret])
    assert "hidden" not in str(caught.value)


@asynccontextmanager
async def serving_http(**tls: Path) -> AsyncIterator[str]:
    settings = OrchestratorSettings(http_listen="127.0.0.1:0", verifiers="127.0.0.1:1", **tls)  # type: ignore[arg-type]
    deployment = Deployment(settings)
    server = HttpServer(settings, Front(deployment))
    await server.listen()
    try:
        yield server.address
    finally:
        await server.stop()
        await deployment.stop()


def client_context(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    """The context of a client that trusts the authority."""
    context = ssl.create_default_context(cafile=authority.ca)
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


async def http_connects(address: str, client: ssl.SSLContext) -> bool:
    """Whether a new connection gets an answer."""
    async with httpx.AsyncClient(verify=client, timeout=10) as asking:
        try:
            return (await asking.get(f"https://{address}/health")).status_code == 200
        except httpx.TransportError:
            return False


async def test_renewed_certificates_are_used_over_http(
    authority: Authority, stranger: Authority
) -> None:
    pair = authority.pair("server")
    old, new = client_context(authority), client_context(stranger)
    async with serving_http(**flags(pair)) as address:
        assert await http_connects(address, old) and not await http_connects(address, new)
        renewed = stranger.pair("server")
        with capture_logs() as lines:
            pair.certificate.write_bytes(renewed.certificate.read_bytes())  # the key is still old
            assert await http_connects(address, old)
            pair.key.write_bytes(renewed.key.read_bytes())
            assert await http_connects(address, new)
        events = [line["event"] for line in lines if line["event"].startswith("certificates")]
        assert events == ["certificates not renewed", "certificates renewed"]
        assert not await http_connects(address, old)


async def test_changed_client_authority_applies_over_http(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    """Clients admitted before are checked again: their TLS sessions cannot be resumed."""
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(authority.ca.read_bytes())
    known = client_context(authority, authority.pair("client"))
    unknown = client_context(authority, stranger.pair("client"))
    files = flags(authority.pair("server"), tls_client_ca=trusted)
    async with serving_http(**files) as address:
        assert not await http_connects(address, client_context(authority))
        assert await http_connects(address, known) and not await http_connects(address, unknown)
        assert await asyncio.to_thread(_tls_session_of, address, known) is None
        trusted.write_bytes(stranger.ca.read_bytes())
        assert await http_connects(address, unknown) and not await http_connects(address, known)


def _tls_session_of(address: str, client: ssl.SSLContext) -> ssl.SSLSession | None:
    """The TLS session that a client could resume."""
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        client.wrap_socket(plain, server_hostname=host) as secure,
    ):
        secure.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert secure.recv(1 << 16).startswith(b"HTTP/1.1 200")
        return secure.session if secure.session and secure.session.has_ticket else None


async def test_unusable_tls_files_stop_the_start_over_http(
    authority: Authority, tmp_path: Path
) -> None:
    missing = Pair(tmp_path / "gone.pem", authority.pair("server").key)
    with pytest.raises(StartupFailure, match="tls_certificate: .*gone.pem cannot be read"):
        async with serving_http(**flags(missing)):
            pass
