"""Processes learn the phrases of a request exactly once, whichever process published them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from draftloop.phrase import Phrase, PhraseAccess, PhraseScope
from draftloop.speculation import Speculation
from draftloop.tree import EMPTY_TREE, Verdict
from phrase_store.index import warm_up
from phrase_store.log import LogOptions, list_namespaces
from phrase_store.records import encode
from phrase_store.session import PhraseSession
from phrase_store.store import PhraseStore
from tests.support.generation_request import generation_request
from tests.support.phrases import CONTEXT, phrase, proposed_after
from tests.support.redis_server import RedisServer
from tests.support.waiting import until

KEY = "draftloop:phrases:m:"


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm_up()


def session(store: PhraseStore, access: PhraseAccess, *, publishes: bool) -> PhraseSession:
    """The phrase session of a request in one of the processes that serve it."""
    opened = store.session(
        access, CONTEXT, vocabulary_size=1000, expected_tokens=16, publishes=publishes
    )
    assert opened is not None
    return opened


def learn_tokens(phrase_session: PhraseSession, *tokens: int) -> None:
    """Learns from a round without a draft."""
    phrase_session.learn(CONTEXT, EMPTY_TREE, Verdict((), tokens, tokens[0]))


def test_records_read_back_by_their_publisher_count_once(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    publisher, reader = (open_store(server.url).namespace("m") for _ in range(2))
    publisher.publish(1, phrase(5))
    publisher.publish(2, phrase(6))
    until(lambda: reader.figures().received == 2)
    reader.publish(3, phrase(7))
    until(lambda: publisher.figures().received == 1)
    assert reader.figures().received == 2


def test_drafter_learns_every_round_of_its_requests_once(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    """After learning one phrase itself, a drafter used to skip the orchestrator's later records."""
    orchestrator, drafter = open_store(server.url), open_store(server.url)
    access = PhraseAccess(target_fingerprint="m", origin=7)
    first = session(orchestrator, access, publishes=True)
    second = session(drafter, access, publishes=False)
    publisher, follower = orchestrator.namespaces()[0], drafter.namespaces()[0]
    assert follower.wait_replayed(10)
    for phrase_session in (first, second):  # a round that both processes learn from
        learn_tokens(phrase_session, 4, 5)
    for token in range(100, 110):  # further rounds, drafted elsewhere
        learn_tokens(first, token)
    until(lambda: follower.figures().received == 11)
    state = [int(number) for number in publisher.index.table.state]
    assert [int(number) for number in follower.index.table.state] == state


def test_drafter_learns_by_itself_without_a_shared_log(
    open_store: Callable[..., PhraseStore],
) -> None:
    store = open_store("memory://")
    phrase_session = session(store, PhraseAccess(target_fingerprint="m"), publishes=False)
    learn_tokens(phrase_session, 4, 5)
    assert proposed_after(store.namespaces()[0]) == (4, 5)


def test_requests_with_the_same_client_id_are_distinct(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    """A whole agent run may use one id; replicas used to skip one another's phrases of it."""
    replicas = [open_store(server.url) for _ in range(2)]
    for store in replicas:
        assert store.namespace("m").wait_replayed(10)
    for number, store in enumerate(replicas):
        request = generation_request(request_id="run", prompt=CONTEXT, speculation=Speculation())
        learn_tokens(session(store, request.access("m"), publishes=True), 4 + number)
    until(lambda: [store.figures().received for store in replicas] == [1, 1])


def test_no_log_is_kept_in_memory_without_other_readers(
    open_store: Callable[..., PhraseStore],
) -> None:
    """A log in memory used to hold tens of MiB per namespace, and two threads, for no reader."""
    threads = set(threading.enumerate())
    store = open_store("memory://")
    for tenant in "ab":
        for number in range(100):
            store.namespace("m", tenant).publish(number, phrase(5))
        assert proposed_after(store.namespace("m", tenant)) == (5,)
    until(lambda: set(threading.enumerate()) <= threads)
    figures = store.figures()
    assert (figures.published, figures.dropped, figures.waiting, figures.replaying) == (0, 0, 0, 0)
    assert not figures.open_breakers and not list_namespaces("memory://", LogOptions())


def test_running_request_keeps_its_namespace(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    """Requests of other tenants used to evict the namespace, and its phrases were lost."""
    store, second_store = open_store(server.url, phrases_namespaces=2), open_store(server.url)
    phrase_session = session(
        store, PhraseAccess(target_fingerprint="m", tenant="a"), publishes=True
    )
    for number in range(10):
        store.namespace("m", f"other {number}")
        learn_tokens(phrase_session, 100 + number)
    following = second_store.namespace("m", "a")
    until(lambda: following.figures().received == 10)
    assert [namespace.name for namespace in store.namespaces()] == ["m:other 9", "m:a"]


@pytest.mark.parametrize("scope", [PhraseScope.SHARED, PhraseScope.READ_ONLY])
def test_request_that_only_reads_keeps_its_namespace(
    server: RedisServer, open_store: Callable[..., PhraseStore], scope: PhraseScope
) -> None:
    """So do the drafter's sessions, while the orchestrator publishes the phrases."""
    store = open_store(server.url, phrases_namespaces=2)
    access = PhraseAccess(target_fingerprint="m", tenant="a", scope=scope)
    reading = session(store, access, publishes=scope is PhraseScope.READ_ONLY)
    for number in range(4):
        store.namespace("m", f"other {number}")
        reading.extend(CONTEXT, [100 + number])
    assert [namespace.name for namespace in store.namespaces()] == ["m:other 3", "m:a"]


def test_phrases_for_an_evicted_namespace_are_counted_as_dropped(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    usual_s = LogOptions().operation_timeout_s
    store = open_store(server.url, phrases_namespaces=1, phrases_timeout_s=usual_s)
    access = PhraseAccess(target_fingerprint="m", tenant="a")
    first, second = (session(store, access, publishes=True) for _ in range(2))
    server.freeze()  # nothing can be written until it is thawed
    learn_tokens(second, 4)
    store.namespace("m", "b")
    learn_tokens(first, 5)
    learn_tokens(first, 6)
    assert [namespace.name for namespace in store.namespaces()] == ["m:b"]
    until(lambda: store.figures().dropped == 3)
    assert store.figures().published == 0


def replace_stream(client: redis.Redis, entries: Sequence[Any]) -> None:
    """Replaces the log by these entries and their ids, as a promoted or restored server has it."""
    pipeline = client.pipeline()
    pipeline.delete(KEY)
    for place, fields in entries:
        pipeline.xadd(KEY, fields, id=place)
    pipeline.execute()


def wait_until_end_checked(client: redis.Redis) -> None:
    """Waits until a follower of the idle log has checked its end twice."""

    def end_checks() -> int:
        return int(client.info("commandstats").get("cmdstat_xrevrange", {"calls": 0})["calls"])

    before = end_checks()
    until(lambda: end_checks() >= before + 2)


def fill(client: redis.Redis, count: int) -> None:
    pipeline = client.pipeline()
    for number in range(count):
        pipeline.xadd(KEY, {"r": encode(number, phrase(number))}, id=f"{1000 + number}-0")
    pipeline.execute()


def test_log_that_lost_its_newest_records_is_not_read_again(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    """After a failover that lost one record, the whole log used to be read again."""
    with server.client() as client:
        fill(client, 400)
        namespace = open_store(server.url).namespace("m")
        assert namespace.wait_replayed(10) and namespace.figures().received == 400
        for remaining in (399, 398, 90, 3):  # the last as from an old backup
            replace_stream(client, client.xrange(KEY)[:remaining])
            wait_until_end_checked(client)
            assert namespace.figures().received == 400
        client.xdel(KEY, client.xrevrange(KEY, count=1)[0][0])
        wait_until_end_checked(client)
        client.xadd(KEY, {"r": encode(999, [Phrase((1,), (2,))])}, id="1005-0")
        until(lambda: namespace.figures().received == 401)
        assert proposed_after(namespace, (1,)) == (2,)


def test_replaced_log_is_read_from_the_beginning_and_nothing_forgotten(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    with server.client() as client:
        fill(client, 100)
        namespace = open_store(server.url).namespace("m")
        assert namespace.wait_replayed(10)
        until(lambda: len(proposed_after(namespace)) == 1)
        replacement = [
            (f"{place}-7", {"r": encode(place, [Phrase((1,), (2,))])}) for place in (998, 1050)
        ]
        replace_stream(client, replacement)
        until(lambda: namespace.figures().received == 102)
        assert proposed_after(namespace, (1,)) == (2,) and len(proposed_after(namespace)) == 1
        wait_until_end_checked(client)
        assert namespace.figures().received == 102
