"""The Redis rights in docs/phrases.md suffice, and refusals reveal no secret."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from draftloop.config import REPOSITORY
from draftloop.phrase import Phrase
from phrase_store.log import (
    START,
    LogDenied,
    LogOptions,
    LogRefused,
    LogUnavailable,
    PhraseLog,
    open_log,
)
from phrase_store.records import encode
from tests.service.conftest import PATIENCE_S
from tests.support.ports import quiet_port
from tests.support.redis_server import RedisServer
from tests.support.waiting import until

OPTIONS = LogOptions(max_length=1000, connect_timeout_s=PATIENCE_S, operation_timeout_s=PATIENCE_S)
NAMESPACE = "model:tenant"
PASSWORD = "open-sesame"
RECORD = encode(7, [Phrase((1, 2), (3,))])
LAST_SLOT = 16383


def documented_in_phrases_page(pattern: str) -> str:
    """The first group of the pattern in docs/phrases.md."""
    page = (REPOSITORY / "docs" / "phrases.md").read_text(encoding="utf-8")
    match = re.search(pattern, page, re.MULTILINE)
    assert match is not None
    return match[1]


def redis_user(*more: str) -> str:
    rights = documented_in_phrases_page(r"^user draftloop (.+)$").replace("password", PASSWORD)
    return " ".join(["user draftloop", rights, *more])


def call_all_operations(log: PhraseLog) -> None:
    """All operations of a log."""
    log.append([RECORD])
    log.read(START, 10)
    log.follow(START, 10, 0.01)
    log.resume("99999999999999-0")
    log.cleared(START)
    log.length()


@contextmanager
def assert_nothing_refused(server: RedisServer) -> Iterator[None]:
    """Asserts that no command is refused, for missing rights or otherwise.

    Its own commands cause no errors, as the connection is made before the first count.
    """
    with server.client() as client:
        before = client.info("stats")["total_error_replies"]
        yield
        assert client.acl_log() == []
        assert client.info("stats")["total_error_replies"] == before


def test_documented_rights_suffice_for_a_server(tmp_path: Path) -> None:
    """The client library's report of its name used to be refused at every connection (ACL LOG)."""
    with RedisServer(tmp_path, redis_user("+select")) as server, assert_nothing_refused(server):
        url = f"redis://draftloop:{PASSWORD}@127.0.0.1:{server.port}/1"
        log = open_log(url, NAMESPACE, OPTIONS)
        call_all_operations(log)
        log.clear(RECORD)
        log.close()


def is_cluster_ok(node: Any) -> bool:
    """Whether a node of the cluster accepts commands."""
    return bool(node.execute_command("CLUSTER INFO")["cluster_state"] == "ok")


@contextmanager
def cluster(folder: Path, acl: str) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A cluster of two nodes: the second has the last slot, the first all others."""
    ports = [quiet_port(), quiet_port()]
    common = ("cluster-enabled yes", acl)
    with (
        RedisServer(folder, *common, f"cluster-port {ports[0]}") as first,
        RedisServer(folder, *common, f"cluster-port {ports[1]}") as second,
    ):
        nodes: list[Any] = [first.client(), second.client()]
        nodes[0].execute_command("CLUSTER ADDSLOTSRANGE", 0, LAST_SLOT - 1)
        nodes[1].execute_command("CLUSTER ADDSLOTSRANGE", LAST_SLOT, LAST_SLOT)
        nodes[1].execute_command("CLUSTER SET-CONFIG-EPOCH", 2)
        nodes[0].execute_command("CLUSTER MEET", "127.0.0.1", second.port, ports[1])
        for node in nodes:
            until(partial(is_cluster_ok, node))
            node.close()
        yield first, second


def test_documented_rights_suffice_while_a_cluster_moves_a_slot(tmp_path: Path) -> None:
    """A key that is being moved is read with another command, which needs a right too."""
    with cluster(
        tmp_path, redis_user(documented_in_phrases_page(r"`([^`]+)` for a\s+cluster"))
    ) as (first, second):
        url = f"redis+cluster://draftloop:{PASSWORD}@127.0.0.1:{first.port}"
        log = open_log(url, NAMESPACE, OPTIONS)
        call_all_operations(log)
        source: Any = first.client()
        target: Any = second.client()
        key = f"draftloop:phrases:{NAMESPACE}"
        slot = source.execute_command("CLUSTER KEYSLOT", key)
        names = [node.execute_command("CLUSTER MYID") for node in (source, target)]
        target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[0])
        source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[1])
        call_all_operations(log)
        source.execute_command("MIGRATE", "127.0.0.1", second.port, key, 0, 5000)
        call_all_operations(log)
        assert source.acl_log() == [] and target.acl_log() == []
        assert log.length() == 3
        log.close()
        source.close()
        target.close()


def test_documented_rights_suffice_for_a_sentinel(tmp_path: Path) -> None:
    rights = documented_in_phrases_page(r"needs\s+`([^`]+)`")
    own = f"user watcher on >{PASSWORD} {rights}"
    with RedisServer(tmp_path, redis_user()) as master, assert_nothing_refused(master):
        monitor = f"sentinel monitor phrases 127.0.0.1 {master.port} 1"
        with RedisServer(tmp_path, monitor, own, sentinel=True) as sentinel:
            url = f"redis+sentinel://draftloop:{PASSWORD}@127.0.0.1:{sentinel.port}/phrases"
            query = f"?sentinel_username=watcher&sentinel_password={PASSWORD}"
            log = open_log(url + query, NAMESPACE, OPTIONS)
            call_all_operations(log)
            log.close()
            with sentinel.client() as client:
                assert client.acl_log() == []


@pytest.mark.parametrize("credentials", [f":{PASSWORD}@", f"draftloop:{PASSWORD}@", ""])
def test_arguments_quoted_in_server_errors_are_hidden(tmp_path: Path, credentials: str) -> None:
    """A server that lacks a command quotes its arguments: passwords and users' text."""
    with RedisServer(tmp_path, 'rename-command AUTH ""', 'rename-command XADD ""') as server:
        log = open_log(f"redis://{credentials}127.0.0.1:{server.port}", NAMESPACE, OPTIONS)
        with pytest.raises(LogUnavailable) as caught:
            log.append([b"what a user wrote"])
        log.close()
    message = str(caught.value)
    assert message.endswith(f"unknown command '{'AUTH' if credentials else 'XADD'}'")
    assert PASSWORD not in message and "wrote" not in message


def test_refusal_is_distinguished_from_an_outage(tmp_path: Path) -> None:
    with RedisServer(tmp_path, f"replicaof 127.0.0.1 {quiet_port()}") as replica:
        log = open_log(replica.url, NAMESPACE, OPTIONS)
        assert log.length() == 0
        with pytest.raises(LogRefused, match="read only replica"):
            log.append([RECORD])
        log.close()
        replica.kill()
        with pytest.raises(LogUnavailable) as caught:
            log.length()
        assert not isinstance(caught.value, LogRefused)


@pytest.mark.parametrize("credentials", [":another@", "draftloop:another@", ""])
def test_wrong_credentials_raise_log_denied(tmp_path: Path, credentials: str) -> None:
    with RedisServer(tmp_path, f"requirepass {PASSWORD}") as server:
        log = open_log(f"redis://{credentials}127.0.0.1:{server.port}", NAMESPACE, OPTIONS)
        for call in (log.length, lambda: log.append([RECORD])):
            with pytest.raises(LogDenied, match="invalid username-password|Authentication req"):
                call()
        log.close()
