"""Stores of several processes over one real Redis: they learn from one another, or do without."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from draftloop.calibration import Calibration
from draftloop.phrase import Phrase, PhraseAccess
from draftloop.request import GenerationRequest, SamplingParameters
from draftloop.speculation import Speculation
from draftloop.tree import EMPTY_TREE, DraftBudget, Verdict
from phrase_store.config import PhraseSettings
from phrase_store.index import correction_of, grow, warm_up
from phrase_store.log import LogUnavailable, list_namespaces, open_log
from phrase_store.records import encode, encode_cleared
from phrase_store.redis_log import RedisLog
from phrase_store.replication import READ_RECORDS
from phrase_store.session import PhraseSession
from phrase_store.store import Namespace, PhraseStore, namespace_name
from phrase_store.transfer import clear_log, open_patiently
from tests.support.redis_server import RedisServer
from tests.support.waiting import until

CONTEXT = (11, 12, 13)
STALL_S = 0.05


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm_up()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as running:
        yield running


@pytest.fixture
def open_store() -> Iterator[Callable[..., PhraseStore]]:
    """Opens stores as different processes would have them."""
    stores: list[PhraseStore] = []

    def opened(url: str, **settings: Any) -> PhraseStore:
        stores.append(PhraseStore(PhraseSettings(phrases_url=url, phrases_mib=1, **settings)))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


def says(namespace: Namespace, context: tuple[int, ...] = CONTEXT) -> tuple[int, ...]:
    """What the namespace thinks follows."""
    correction = correction_of(Calibration())
    budget = DraftBudget(max_nodes=3, max_depth=3)
    shared = namespace.index
    grown = grow(context, budget, shared=shared, own=None, correction=correction, most_leaves=1)
    return grown.tree.token_ids


def phrase(*tokens: int) -> list[Phrase]:
    return [Phrase(CONTEXT, tokens)]


def clear(server: RedisServer) -> None:
    """As `draftloop phrases clear` does, from a process of its own."""
    with open_patiently(server.url, namespace_name("m", "")) as log:
        clear_log(log)


def test_what_one_process_publishes_the_others_know(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    first, second = (open_store(server.url).namespace("m") for _ in range(2))
    first.publish(1, phrase(5, 6, 7))
    until(lambda: says(second) == (5, 6, 7))
    late = open_store(server.url).namespace("m")  # replays what was before it
    assert late.wait_replayed(10) and says(late) == (5, 6, 7)


def session(store: PhraseStore, access: PhraseAccess, *, publishes: bool) -> PhraseSession:
    """Of a request in one of the processes that serve it."""
    made = store.session(access, CONTEXT, vocabulary_size=1000, publishes=publishes)
    assert made is not None
    return made


def commits(made: PhraseSession, *tokens: int) -> None:
    """A round, in which no draft was judged."""
    made.learn(CONTEXT, EMPTY_TREE, Verdict((), tokens, tokens[0]))


def test_what_comes_back_to_who_published_it_counts_once(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    publisher, other = (open_store(server.url).namespace("m") for _ in range(2))
    publisher.publish(1, phrase(5))
    publisher.publish(2, phrase(6))
    until(lambda: other.figures().received == 2)
    other.publish(3, phrase(7))
    until(lambda: publisher.figures().received == 1)
    assert other.figures().received == 2


def test_a_drafter_hears_once_of_all_rounds_of_its_requests(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    """One phrase learned at first hand made it pass over all that the orchestrator said after."""
    orchestrator, drafter = open_store(server.url), open_store(server.url)
    access = PhraseAccess(target_fingerprint="m", origin=7)
    first = session(orchestrator, access, publishes=True)
    second = session(drafter, access, publishes=False)
    known, following = orchestrator.namespaces()[0], drafter.namespaces()[0]
    assert following.wait_replayed(10)
    for made in (first, second):  # a round of which both heard
        commits(made, 4, 5)
    for token in range(100, 110):  # and others that were drafted elsewhere
        commits(first, token)
    until(lambda: following.figures().received == 11)
    state = [int(number) for number in known.index.table.state]
    assert [int(number) for number in following.index.table.state] == state


def test_where_no_log_is_shared_a_drafter_learns_by_itself(
    open_store: Callable[..., PhraseStore],
) -> None:
    store = open_store("memory://")
    made = session(store, PhraseAccess(target_fingerprint="m"), publishes=False)
    commits(made, 4, 5)
    assert says(store.namespaces()[0]) == (4, 5)


def test_requests_that_clients_name_alike_are_several(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    """A whole agent run may have one id: replicas passed over one another's phrases of it."""
    replicas = [open_store(server.url) for _ in range(2)]
    for store in replicas:
        assert store.namespace("m").wait_replayed(10)
    for number, store in enumerate(replicas):
        request = GenerationRequest(
            request_id="run", prompt=CONTEXT, sampling=SamplingParameters(), max_tokens=4,
            speculation=Speculation(),
        )  # fmt: skip
        commits(session(store, request.access("m"), publishes=True), 4 + number)
    until(lambda: [store.figures().received for store in replicas] == [1, 1])


def test_a_log_that_nobody_else_may_read_is_not_kept(
    open_store: Callable[..., PhraseStore],
) -> None:
    """It held tens of MiB a namespace beside `phrases_mib`, and two threads."""
    threads = set(threading.enumerate())
    store = open_store("memory://")
    for tenant in "ab":
        for number in range(100):
            store.namespace("m", tenant).publish(number, phrase(5))
        assert says(store.namespace("m", tenant)) == (5,)
    until(lambda: set(threading.enumerate()) <= threads)
    figures = store.figures()
    assert (figures.published, figures.dropped, figures.waiting, figures.replaying) == (0, 0, 0, 0)
    assert not figures.open_breakers and not list_namespaces("memory://")


def test_models_and_tenants_are_apart(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    writer, reader = open_store(server.url), open_store(server.url)
    writer.namespace("m", "a").publish(1, phrase(5))
    until(lambda: says(reader.namespace("m", "a")) == (5,))
    for model, tenant in (("m", ""), ("m", "b"), ("n", "a")):
        assert reader.namespace(model, tenant).wait_replayed(10)
        assert says(reader.namespace(model, tenant)) == ()


def test_clearing_reaches_every_process_and_what_comes_later_stays(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    first, second = (open_store(server.url).namespace("m") for _ in range(2))
    first.publish(1, phrase(5))
    until(lambda: says(second) == (5,))
    clear(server)
    until(lambda: says(first) == ())
    first.publish(2, phrase(6))
    until(lambda: says(second) == (6,))
    late = open_store(server.url).namespace("m")
    assert late.wait_replayed(10) and says(late) == (6,)


def test_foreign_and_damaged_records_are_counted_and_passed_over(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    key = "draftloop:phrases:m:"
    good = encode(1, phrase(5))
    records: list[dict[str, bytes]] = [
        {"other": b"field"}, {"r": b""}, {"r": b"\xff" * 40}, {"r": b"\x63" + good[1:]},
        {"r": good[:-1]}, {"r": good},
    ]  # fmt: skip
    with redis.Redis.from_url(server.url) as client:
        for record in records:
            client.xadd(key, record)
    namespace = open_store(server.url).namespace("m")
    assert namespace.wait_replayed(10)
    assert namespace.figures().skipped == 5 and says(namespace) == (5,)


@pytest.mark.parametrize("silent", [False, True], ids=["killed", "frozen"])
def test_without_redis_nothing_stalls_and_the_log_resumes(
    server: RedisServer, open_store: Callable[..., PhraseStore], silent: bool
) -> None:
    first, second = (open_store(server.url).namespace("m") for _ in range(2))
    first.publish(1, phrase(5))
    until(lambda: says(second) == (5,))
    server.freeze() if silent else server.kill()
    stalls = []
    for number in range(2000, 2600, 3):
        began = time.perf_counter()
        first.publish(number, [Phrase((number,), (number + 1, number + 2))])
        assert says(first, (number,)) == (number + 1, number + 2)
        stalls.append(time.perf_counter() - began)
        time.sleep(0.005)
    assert sorted(stalls)[-5] < STALL_S  # a busy machine may stall anybody once
    assert first.figures().failures and first.figures().failures < 60  # a breaker, no retry storm
    server.thaw() if silent else server.start()

    def heard() -> bool:
        first.publish(900, [Phrase((901,), (902,))])
        time.sleep(0.1)
        return says(second, (901,)) == (902,)

    until(heard, 30)


def test_flushall_under_load_is_no_error(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    # A machine that stands still for 50 ms is no error either, but counted as one.
    stores = (open_store(server.url, phrases_timeout_s=5.0) for _ in range(2))
    first, second = (store.namespace("m") for store in stores)
    with server.client() as client:
        for number in range(300):
            first.publish(number, [Phrase((1000 + number,), (7,))])
            if number % 100 == 50:
                client.flushall()
            time.sleep(0.002)
    first.publish(999, [Phrase((5000,), (8,))])
    until(lambda: says(second, (5000,)) == (8,))
    assert first.figures().failures == second.figures().failures == 0


def test_publishing_never_waits_for_the_log(
    server: RedisServer, open_store: Callable[..., PhraseStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever publishes leaves the writing to another thread, so to say to a Redis that is stuck.

    What the call itself takes is printed by `python -m benchmarks.phrase_log`.
    """
    append, writers = RedisLog.append, []

    def noted(log: RedisLog, records: Sequence[bytes]) -> None:
        writers.append(threading.get_ident())
        append(log, records)

    monkeypatch.setattr(RedisLog, "append", noted)
    namespace = open_store(server.url).namespace("m")
    server.freeze()
    for number in range(2000):
        namespace.publish(number, phrase(number))
    until(lambda: bool(writers))
    server.thaw()
    assert threading.get_ident() not in writers


def test_thousands_of_records_are_replayed_in_few_reads(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    """What it takes in seconds is printed by `python -m benchmarks.phrase_log`."""
    key = "draftloop:phrases:m:"
    count = 20_000
    with server.client() as client:
        pipeline = client.pipeline(transaction=False)
        for number in range(count):
            pipeline.xadd(key, {"r": encode(number, [Phrase((number % 500,), (number % 7,))])})
        pipeline.execute()
        namespace = open_store(server.url).namespace("m")
        assert namespace.wait_replayed(30)
        assert namespace.figures().received == count
        assert client.info("commandstats")["cmdstat_xrange"]["calls"] <= count / READ_RECORDS + 2


def test_tenants_beyond_the_limit_push_out_the_one_used_longest_ago(
    open_store: Callable[..., PhraseStore],
) -> None:
    store = open_store("memory://limit", phrases_namespaces=2)
    for tenant in ("a", "b", "a", "c"):
        store.namespace("m", tenant)
    assert [namespace.name for namespace in store.namespaces()] == ["m:a", "m:c"]


def test_what_is_pushed_out_is_freed_at_once(open_store: Callable[..., PhraseStore]) -> None:
    """Many tenants, each for one request, would fill the memory before Python looks for circles."""
    store = open_store("memory://freed", phrases_namespaces=1)
    gone: list[weakref.ref[object]] = []
    gc.disable()
    try:
        for tenant in "abc":
            namespace = store.namespace("m", tenant)
            namespace.publish(1, phrase(1, 2, 3))
            assert namespace.wait_replayed(10)
            gone += [weakref.ref(namespace), weakref.ref(namespace.index)]
        del namespace
        until(lambda: not any(one() for one in gone[:-2]))
        assert all(one() for one in gone[-2:])
    finally:
        gc.enable()


def test_tokens_of_no_vocabulary_are_passed_over(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    """Anybody may write to the log; a table of successors has no row for them."""
    writer = open_store(server.url).namespace("m")
    reader = open_store(server.url).namespace("m", vocabulary_size=100)
    for number, token in enumerate((2_000_000_000, 100, 99)):
        writer.publish(number, phrase(token, 7))
        until(lambda: not writer.figures().waiting)
    until(lambda: says(reader) == (99, 7))
    assert reader.figures().skipped == 2 and reader.figures().received == 1
    successors = reader.successors(100).rows
    shared, correction = writer.index, correction_of(Calibration())
    budget = DraftBudget(max_nodes=4, max_depth=4)
    grown = grow(
        (2_000_000_000,), budget, shared=shared, own=None, correction=correction,
        successors=successors,
    )  # fmt: skip
    assert set(grown.tree.token_ids) <= {7}


def test_who_is_pushed_out_lets_go_of_its_memory_although_it_is_read(
    open_store: Callable[..., PhraseStore],
) -> None:
    """Requests of more tenants than the limit would hold as many indexes."""
    store = open_store("memory://read", phrases_namespaces=1)
    first = store.namespace("m", "a")
    first.publish(1, phrase(5))
    assert says(first) == (5,) and first.index.bytes
    store.namespace("m", "b")
    until(lambda: not first.index.bytes)
    first.publish(2, phrase(6))
    assert says(first) == () and first.index.entries == 0


def test_clearing_forgets_successors_too(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    first, second = (open_store(server.url).namespace("m") for _ in range(2))
    for namespace in (first, second):
        namespace.successors(8).learn([1], [2, 3])
    clear(server)
    until(lambda: (second.successors(8).rows == -1).all())
    until(lambda: (first.successors(8).rows == -1).all())


def test_a_log_that_is_idle_is_not_lost(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    """A server ends a wait up to a tenth of a second late, which is twice our patience."""
    reader = open_store(server.url).namespace("m")
    writer = open_store(server.url, phrases_timeout_s=5.0).namespace("m")
    for number in range(3):
        time.sleep(1.3)
        writer.publish(number, phrase(5))
    until(lambda: reader.figures().received == 3)
    assert reader.figures().failures == 0


def test_large_records_are_read_in_smaller_parts(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    """A thousand of them would not come in time, however often they were asked for."""
    key, count = "draftloop:phrases:m:", 400
    large = encode(1, [Phrase(tuple(range(8)), tuple(range(64)))] * 256)
    with redis.Redis.from_url(server.url) as client:
        pipeline = client.pipeline(transaction=False)
        for number in range(count):
            pipeline.xadd(key, {"r": large if number % 2 else b"x" * 1_000_000})
        pipeline.execute()
    namespace = open_store(server.url).namespace("m")
    assert namespace.wait_replayed(60)
    assert namespace.figures().skipped == count // 2
    assert namespace.figures().received == 256 * count // 2


def test_reasons_do_not_tell_what_users_wrote(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    with server.client() as client:
        client.config_set("maxmemory", 1)
    log = open_log(server.url, "m:acme")
    with pytest.raises(
        LogUnavailable, match=r"127.0.0.1:\d+: command not allowed when used"
    ) as caught:
        log.append([encode(1, phrase(5))])
    assert "acme" not in str(caught.value) and "XADD" not in str(caught.value)
    log.close()


def test_a_full_server_can_be_cleared(server: RedisServer) -> None:
    log = open_log(server.url, "m:")
    log.append([encode(1, phrase(5))] * 10)
    with server.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] - 1)
        client.config_set("maxmemory-policy", "noeviction")
        with pytest.raises(LogUnavailable):
            log.append([encode(1, phrase(5))])
        with contextlib.suppress(LogUnavailable):  # where ten records were too little to free
            log.clear(encode_cleared(1))
            assert log.length() == 1
    log.close()


KEY = "draftloop:phrases:m:"


def replace_stream(client: redis.Redis, entries: Sequence[Any]) -> None:
    """As a server has it that was promoted or restored: nothing else, and its clock there."""
    pipeline = client.pipeline()
    pipeline.delete(KEY)
    for place, fields in entries:
        pipeline.xadd(KEY, fields, id=place)
    pipeline.execute()


def until_noticed(client: redis.Redis) -> None:
    """Until whoever follows an idle log has looked twice where its end is."""

    def looks() -> int:
        return int(client.info("commandstats").get("cmdstat_xrevrange", {"calls": 0})["calls"])

    before = looks()
    until(lambda: looks() >= before + 2)


def fill(client: redis.Redis, count: int) -> None:
    pipeline = client.pipeline()
    for number in range(count):
        pipeline.xadd(KEY, {"r": encode(number, phrase(number))}, id=f"{1000 + number}-0")
    pipeline.execute()


def test_a_log_that_lost_its_newest_records_is_not_counted_again(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    """A failover to a replica that was one record behind had all of it read twice."""
    with server.client() as client:
        fill(client, 400)
        namespace = open_store(server.url).namespace("m")
        assert namespace.wait_replayed(10) and namespace.figures().received == 400
        for left in (399, 398, 90, 3):  # the last as from an old backup
            replace_stream(client, client.xrange(KEY)[:left])
            until_noticed(client)
            assert namespace.figures().received == 400
        client.xdel(KEY, client.xrevrange(KEY, count=1)[0][0])
        until_noticed(client)
        client.xadd(KEY, {"r": encode(999, [Phrase((1,), (2,))])}, id="1005-0")
        until(lambda: says(namespace, (1,)) == (2,))
        assert namespace.figures().received == 401


def test_another_log_is_read_from_its_beginning_and_nothing_is_forgotten(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    with server.client() as client:
        fill(client, 100)
        namespace = open_store(server.url).namespace("m")
        assert namespace.wait_replayed(10)
        until(lambda: len(says(namespace)) == 1)
        other = [
            (f"{place}-7", {"r": encode(place, [Phrase((1,), (2,))])}) for place in (998, 1050)
        ]
        replace_stream(client, other)
        until(lambda: namespace.figures().received == 102)
        assert says(namespace, (1,)) == (2,) and len(says(namespace)) == 1
        until_noticed(client)
        assert namespace.figures().received == 102
