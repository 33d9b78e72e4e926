"""The contract of all phrase logs: memory, one Redis, cluster, sentinels, TLS, ACL."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from draftloop.phrase import Phrase
from phrase_store.log import (
    START,
    LogOptions,
    LogRefused,
    LogUnavailable,
    PhraseLog,
    list_namespaces,
    open_log,
)
from phrase_store.records import encode, encode_cleared
from phrase_store.unpack import decode
from tests.service.conftest import PATIENCE_S
from tests.support.ports import quiet_port
from tests.support.redis_server import RedisServer
from tests.support.waiting import until

OPTIONS = LogOptions(max_length=1000, connect_timeout_s=PATIENCE_S, operation_timeout_s=PATIENCE_S)
KINDS = ("memory", "server", "socket", "acl", "tls", "cluster", "sentinel")


def record(number: int) -> bytes:
    return encode(number, [Phrase((1, 2), (number,))])


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """The URL of a kind of log; the servers that it needs are started once."""
    folder = tmp_path_factory.mktemp("redis")
    servers: list[RedisServer] = []
    started: dict[str, str] = {}

    def start(*options: str, **more: bool) -> RedisServer:
        server = RedisServer(folder, *options, **more)  # type: ignore[arg-type]
        servers.append(server)
        server.start()
        return server

    def url(kind: str) -> str:
        if kind not in started:
            started[kind] = MAKERS[kind](folder, start)
        return started[kind]

    yield url
    for server in servers:
        server.kill()


Start = Callable[..., RedisServer]


def _memory(folder: Path, start: Start) -> str:
    return f"memory://{uuid.uuid4().hex}"


def _server(folder: Path, start: Start) -> str:
    return start().url


def _socket(folder: Path, start: Start) -> str:
    path = folder / "redis.sock"
    start(f"unixsocket {path}")
    return f"unix://{path}"


def _acl(folder: Path, start: Start) -> str:
    """A user with only the commands of the log, on its keys."""
    commands = "+xadd +xrange +xrevrange +xread +xlen +xtrim +scan"
    port = start(f"user phrases on >p%40ss ~draftloop:phrases:* {commands}").port
    return f"redis://phrases:p%2540ss@127.0.0.1:{port}"


def _tls(folder: Path, start: Start) -> str:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-keyout", key, "-out", certificate, "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    port = quiet_port()
    start(f"tls-port {port}", f"tls-cert-file {certificate}", f"tls-key-file {key}",
          f"tls-ca-cert-file {certificate}", "tls-auth-clients no")  # fmt: skip
    return f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}"


def _cluster(folder: Path, start: Start) -> str:
    server = start("cluster-enabled yes", f"cluster-port {quiet_port()}")
    client: Any = server.client()
    client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
    until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
    client.close()
    return f"redis+cluster://127.0.0.1:{server.port}"


def _sentinel(folder: Path, start: Start) -> str:
    master = start()
    watcher = start(f"sentinel monitor phrases 127.0.0.1 {master.port} 1", sentinel=True)
    return f"redis+sentinel://127.0.0.1:{watcher.port}/phrases"


MAKERS: dict[str, Callable[[Path, Start], str]] = {
    "memory": _memory, "server": _server, "socket": _socket, "acl": _acl, "tls": _tls,
    "cluster": _cluster, "sentinel": _sentinel,
}  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    log_kind: str = request.param
    return log_kind


@pytest.fixture
def log(kind: str, urls: Callable[[str], str]) -> Iterator[PhraseLog]:
    opened = open_log(urls(kind), uuid.uuid4().hex, OPTIONS)
    yield opened
    opened.close()


def test_appended_records_are_read_in_order_from_any_position(log: PhraseLog) -> None:
    assert log.read(START, 10) == [] and log.length() == 0
    log.append([record(1), record(2)])
    log.append([record(3)])
    entries = log.read(START, 10)
    assert [entry.record for entry in entries] == [record(1), record(2), record(3)]
    assert log.read(START, 2) == entries[:2]
    assert log.read(entries[1].position, 10) == entries[2:]
    assert log.read(entries[2].position, 10) == []
    assert log.length() == 3


def test_following_waits_for_new_records_up_to_a_limit(log: PhraseLog) -> None:
    log.append([record(1)])
    (first,) = log.follow(START, 10, 1.0)
    assert log.follow(first.position, 10, 0.05) == []
    log.append([record(2)])
    (second,) = log.follow(first.position, 10, 1.0)
    assert second.record == record(2)


def test_cleared_log_holds_the_clearing_record_and_accepts_new_ones(log: PhraseLog) -> None:
    log.append([record(1)])
    (first,) = log.read(START, 10)
    log.clear(encode_cleared(1))
    assert log.length() == 1 and len(log.read(START, 10)) == 1
    log.append([record(2)])
    entries = log.read(first.position, 10)
    cleared, batch = (decode(entry.record) for entry in entries)
    assert cleared is not None and cleared.cleared and batch is not None and batch.origin == 2


@pytest.mark.parametrize("kind", KINDS[1:])  # no process loses the connection to memory
def test_clearing_is_known_after_its_record_was_trimmed(log: PhraseLog) -> None:
    log.append([record(1)])
    (first,) = log.read(START, 10)
    assert log.cleared(START) is None
    for number in (1, 2):
        log.clear(encode_cleared(number))
        (word,) = log.read(START, 10)
        assert log.cleared(first.position) == word.position
        assert log.cleared(word.position) is None
    log.append([record(number) for number in range(2000)])
    assert word not in log.read(START, 5000)
    assert log.cleared(first.position) == word.position


def test_log_length_is_bounded(log: PhraseLog) -> None:
    for start in range(0, 3000, 100):
        log.append([record(number) for number in range(start, start + 100)])
    assert log.length() < 1300
    last = log.read(START, 5000)[-1]
    assert last.record == record(2999)


def test_namespaces_are_listed_and_separate(kind: str, urls: Callable[[str], str]) -> None:
    names = sorted(f"model-{uuid.uuid4().hex}:{tenant}" for tenant in ("", "a", "b"))
    logs = [open_log(urls(kind), name, OPTIONS) for name in names]
    for number, log in enumerate(logs):
        log.append([record(number)])
        assert log.length() == 1
    logs[0].clear(encode_cleared(1))
    listed = list_namespaces(urls(kind), OPTIONS)
    assert [name for name in listed if any(own in name for own in names)] == names
    for log in logs:
        log.close()


def test_foreign_entries_are_passed_on_to_the_decoder(
    urls: Callable[[str], str],
) -> None:
    name = uuid.uuid4().hex
    log = open_log(urls("server"), name, OPTIONS)
    with redis.Redis.from_url(urls("server")) as client:
        client.xadd(f"draftloop:phrases:{name}", {"foreign": "field"})
        client.xadd(f"draftloop:phrases:{name}", {"r": b"\x09damaged"})
    log.append([record(1)])
    decoded = [decode(entry.record) for entry in log.read(START, 10)]
    assert decoded[:2] == [None, None] and decoded[2] is not None
    log.close()


@pytest.mark.parametrize("frozen", [False, True], ids=["killed", "frozen"])
def test_lost_server_fails_within_milliseconds_and_is_used_again(
    tmp_path: Path, frozen: bool
) -> None:
    options = LogOptions(connect_timeout_s=0.05, operation_timeout_s=0.05)
    with RedisServer(tmp_path) as server:
        log = open_log(server.url, "n", options)

        def appended(number: int) -> bool:
            """Whether the append succeeded; on a busy machine it may fail with a healthy server."""
            with contextlib.suppress(LogUnavailable):
                log.append([record(number)])
                return True
            return False

        until(lambda: appended(1))
        server.freeze() if frozen else server.kill()
        for _ in range(5):
            started = time.monotonic()
            with pytest.raises(LogUnavailable):
                log.append([record(2)])
            assert time.monotonic() - started < 5.0  # faster than redis-py's default retries
        server.thaw() if frozen else server.start()
        until(lambda: appended(3))
        reopened = open_log(server.url, "n", OPTIONS)
        assert reopened.read(START, 100)[-1].record == record(3)
        reopened.close()
        log.close()


def test_log_behind_the_last_position_is_read_from_the_beginning(tmp_path: Path) -> None:
    """A restored or replaced server may be behind the last position that was read."""
    with RedisServer(tmp_path) as server:
        log = open_log(server.url, "n", OPTIONS)
        log.append([record(1)])
        after = "99999999999999-0"
        assert log.follow(after, 10, 0.05) == [] and log.resume(after) == START
        entries = log.follow(START, 10, 0.05)
        assert [entry.record for entry in entries] == [record(1)]
        assert log.resume(entries[0].position) == entries[0].position
        log.close()


@pytest.mark.parametrize("form", ["redis://{}", "redis+cluster://{}", "redis+sentinel://{}/m"])
def test_unreachable_server_is_reported_in_one_short_line(form: str) -> None:
    url = form.format(f"127.0.0.1:{quiet_port()}")
    log = open_log(url, "n", OPTIONS)
    with pytest.raises(LogUnavailable) as caught:
        log.length()
    assert str(caught.value).startswith(f"{url}: ")
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)
    log.close()


def answering(server: socket.socket, answer: bytes) -> None:
    """Gives one answer to every command of the first connection."""
    connection, _ = server.accept()
    with connection:
        while received := connection.recv(1 << 16):
            connection.sendall(answer * received.count(b"*"))


def test_a_server_that_is_too_old_is_told_to_be_that() -> None:
    """Redis 6.0 only said that the position of a record is no position."""
    words = b"-ERR Invalid stream ID specified as stream command argument\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answering, args=(server, words))
        thread.start()
        log = open_log(f"redis://127.0.0.1:{server.getsockname()[1]}", "n", OPTIONS)
        with pytest.raises(LogRefused, match=r"Invalid stream ID .*older than Redis 6\.2"):
            log.read("1-1", 10)
        log.close()
        thread.join(10)


@contextlib.contextmanager
def port_that_closes_connections() -> Iterator[tuple[int, list[int]]]:
    """A port that closes every connection, and a list with one entry per attempt."""
    tries: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    tries.append(port)
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield port, tries
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_each_sentinel_is_tried_once() -> None:
    """With redis-py's default retries one dead sentinel took four seconds, three took twelve."""
    with (
        port_that_closes_connections() as (first, tries),
        port_that_closes_connections() as (second, second_tries),
    ):
        log = open_log(f"redis+sentinel://127.0.0.1:{first},127.0.0.1:{second}/m", "n", OPTIONS)
        for count in (1, 2):
            with pytest.raises(LogUnavailable):
                log.length()
            assert (len(tries), len(second_tries)) == (count, count)
        log.close()


def test_dead_first_sentinel_costs_one_attempt(urls: Callable[[str], str]) -> None:
    live_address = urls("sentinel").removeprefix("redis+sentinel://")
    with port_that_closes_connections() as (port, tries):
        log = open_log(f"redis+sentinel://127.0.0.1:{port},{live_address}", "n", OPTIONS)
        log.append([record(1)])
        log.append([record(2)])
        assert len(tries) == 1  # the sentinel that answered is asked first from then on
        log.close()
