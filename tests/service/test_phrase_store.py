"""Phrase stores of several processes over a real Redis: shared phrases, outages, limits."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable, Sequence

import pytest
import redis
from structlog.testing import capture_logs

from draftloop.calibration import Calibration
from draftloop.phrase import Phrase
from draftloop.tree import DraftBudget
from phrase_store import replication
from phrase_store.index import grow, warm_up
from phrase_store.log import LogOptions, LogUnavailable, open_log
from phrase_store.namespace import namespace_name
from phrase_store.records import encode, encode_cleared
from phrase_store.redis_log import RedisLog
from phrase_store.store import PhraseStore
from phrase_store.transfer import clear_log, open_with_long_timeouts
from tests.service.conftest import PATIENCE_S
from tests.support.phrases import phrase, proposed_after
from tests.support.redis_server import RedisServer
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import until

STALL_S = 0.05
USUAL_S = LogOptions().operation_timeout_s
PATIENT = LogOptions(connect_timeout_s=PATIENCE_S, operation_timeout_s=PATIENCE_S)
TRIES = 5


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm_up()


def clear(server: RedisServer) -> None:
    """Clears the log as `draftloop phrases clear` does from another process."""
    with open_with_long_timeouts(server.url, namespace_name("m", "")) as log:
        clear_log(log)


def test_published_phrases_reach_other_processes(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    first, second = (open_store(server.url).namespace("m") for _ in range(2))
    first.publish(1, phrase(5, 6, 7))
    until(lambda: proposed_after(second) == (5, 6, 7))
    late_reader = open_store(server.url).namespace("m")  # replays the earlier records
    assert late_reader.wait_replayed(10) and proposed_after(late_reader) == (5, 6, 7)


def test_models_and_tenants_are_separate(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    writer, reader = open_store(server.url), open_store(server.url)
    writer.namespace("m", "a").publish(1, phrase(5))
    until(lambda: proposed_after(reader.namespace("m", "a")) == (5,))
    for model, tenant in (("m", ""), ("m", "b"), ("n", "a")):
        assert reader.namespace(model, tenant).wait_replayed(10)
        assert proposed_after(reader.namespace(model, tenant)) == ()


def test_clearing_reaches_every_process_and_keeps_later_phrases(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    first, second = (open_store(server.url).namespace("m") for _ in range(2))
    first.publish(1, phrase(5))
    until(lambda: proposed_after(second) == (5,))
    clear(server)
    until(lambda: proposed_after(first) == ())
    first.publish(2, phrase(6))
    until(lambda: proposed_after(second) == (6,))
    late_reader = open_store(server.url).namespace("m")
    assert late_reader.wait_replayed(10) and proposed_after(late_reader) == (6,)


def test_clearing_drops_phrases_that_were_not_written_yet(
    server: RedisServer, open_store: Callable[..., PhraseStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They used to be written after it, and every other process counted them."""
    monkeypatch.setattr(replication, "GATHER_S", 3.0)
    reader, writer = (open_store(server.url).namespace("m") for _ in range(2))
    writer.publish(1, phrase(5))
    assert writer.figures().waiting
    clear(server)
    until(lambda: not writer.figures().waiting)
    writer.publish(2, phrase(6))
    until(lambda: proposed_after(reader) == (6,))
    assert reader.figures().received == writer.figures().dropped == 1


def test_disconnected_process_applies_a_clearing_whose_record_is_gone(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    """The clearing's record may have been pushed out by later ones, as any record."""
    key = "draftloop:phrases:m:"
    with TcpProxy(f"127.0.0.1:{server.port}") as wire, server.client() as client:
        url = f"redis://{wire.address}"
        namespace = open_store(url, phrases_timeout_s=USUAL_S).namespace("m")

        def while_disconnected(action: Callable[[], object], record: bytes) -> None:
            """Acts while the process is cut off; it then reads the record once it is back."""
            figures = namespace.figures()
            wire.hold()
            until(lambda: namespace.figures().failures > figures.failures)
            action()
            client.xadd(key, {"r": record})
            client.xtrim(key, maxlen=1, approximate=False)
            wire.release()
            until(lambda: namespace.figures().received > figures.received)

        client.xadd(key, {"r": encode(1, phrase(5))})
        until(lambda: proposed_after(namespace) == (5,))
        namespace.successors(8).learn([1], [2, 3])
        while_disconnected(lambda: clear(server), encode(2, [Phrase((1,), (6,))]))
        assert proposed_after(namespace) == () and proposed_after(namespace, (1,)) == (6,)
        assert (namespace.successors(8).rows == -1).all()
        while_disconnected(
            lambda: None, encode(3, [Phrase((2,), (7,))])
        )  # no clearing, nothing forgotten
        assert proposed_after(namespace, (1,)) == (6,) and proposed_after(namespace, (2,)) == (7,)


def test_foreign_and_damaged_records_are_counted_and_skipped(
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
    assert namespace.figures().skipped == 5 and proposed_after(namespace) == (5,)


@pytest.mark.parametrize("frozen", [False, True], ids=["killed", "frozen"])
def test_nothing_stalls_without_redis_and_the_log_resumes(
    server: RedisServer, open_store: Callable[..., PhraseStore], frozen: bool
) -> None:
    stores = (open_store(server.url, phrases_timeout_s=USUAL_S) for _ in range(2))
    first, second = (store.namespace("m") for store in stores)

    def received(token: int) -> bool:
        """Publishes a phrase, again at every call; whether the other store has it."""
        first.publish(900, [Phrase((token,), (902,))])
        time.sleep(0.1)
        return proposed_after(second, (token,)) == (902,)

    until(lambda: received(900), 30)
    server.freeze() if frozen else server.kill()
    stalls = []
    for number in range(2000, 2600, 3):
        started = time.perf_counter()
        first.publish(number, [Phrase((number,), (number + 1, number + 2))])
        assert proposed_after(first, (number,)) == (number + 1, number + 2)
        stalls.append(time.perf_counter() - started)
        time.sleep(0.005)
    assert sorted(stalls)[-5] < STALL_S  # a busy machine may stall anything once
    assert first.figures().failures and first.figures().failures < 60  # a breaker, no retry storm
    server.thaw() if frozen else server.start()
    until(lambda: received(901), 30)


def test_outage_is_logged_once_however_many_namespaces_it_affects(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    """With more tenants than namespaces, each new tenant's namespace meets the outage anew."""
    store = open_store(server.url, phrases_namespaces=2, phrases_timeout_s=5)

    def publish(tenant: str) -> None:
        store.namespace("m", tenant).publish(1, phrase(5))

    with capture_logs() as lines:

        def logged_events() -> list[str]:
            return [line["event"] for line in lines if line["event"].startswith("phrase log")]

        assert store.namespace("m", "a").wait_replayed(10)
        server.kill()
        for tenant in "abcabc":
            publish(tenant)
            until(lambda: store.namespaces()[-1].figures().failures > 0)
        assert logged_events() == ["phrase log lost"]
        server.start()

        def over() -> bool:
            publish("b")
            publish("c")
            time.sleep(0.1)
            return len(logged_events()) > 1

        until(over, 30)
    assert logged_events() == ["phrase log lost", "phrase log back"]


def test_flushall_under_load_causes_no_error(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    stores = (open_store(server.url) for _ in range(2))
    first, second = (store.namespace("m") for store in stores)
    with server.client() as client:
        for number in range(300):
            first.publish(number, [Phrase((1000 + number,), (7,))])
            if number % 100 == 50:
                client.flushall()
            time.sleep(0.002)
    first.publish(999, [Phrase((5000,), (8,))])
    until(lambda: proposed_after(second, (5000,)) == (8,))
    assert first.figures().failures == second.figures().failures == 0


def test_publishing_never_waits_for_the_log(
    server: RedisServer, open_store: Callable[..., PhraseStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread does the writing, so publishing is fast even if Redis hangs.

    `python -m benchmarks.phrase_log` prints what the call itself takes.
    """
    append, writers = RedisLog.append, []

    def record_append(log: RedisLog, records: Sequence[bytes]) -> None:
        writers.append(threading.get_ident())
        append(log, records)

    monkeypatch.setattr(RedisLog, "append", record_append)
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
    """`python -m benchmarks.phrase_log` prints the time that it takes."""
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
        reads = client.info("commandstats")["cmdstat_xrange"]["calls"]
        assert reads <= count / replication.READ_RECORDS + 2


def test_least_recently_used_tenant_is_evicted_beyond_the_limit(
    open_store: Callable[..., PhraseStore],
) -> None:
    store = open_store("memory://limit", phrases_namespaces=2)
    for tenant in ("a", "b", "a", "c"):
        store.namespace("m", tenant)
    assert [namespace.name for namespace in store.namespaces()] == ["m:a", "m:c"]


def test_evicted_namespace_is_freed_at_once(open_store: Callable[..., PhraseStore]) -> None:
    """Reference cycles would wait for the collector: new tenants could fill the memory first."""
    store = open_store("memory://freed", phrases_namespaces=1)
    references: list[weakref.ref[object]] = []
    gc.disable()
    try:
        for tenant in "abc":
            namespace = store.namespace("m", tenant)
            namespace.publish(1, phrase(1, 2, 3))
            assert namespace.wait_replayed(10)
            references += [weakref.ref(namespace), weakref.ref(namespace.index)]
        del namespace
        until(lambda: not any(one() for one in references[:-2]))
        assert all(one() for one in references[-2:])
    finally:
        gc.enable()


def test_tokens_outside_the_vocabulary_are_skipped(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    """Any client may write to the log, and the successor table has no row for such tokens."""
    writer = open_store(server.url).namespace("m")
    reader = open_store(server.url).namespace("m", vocabulary_size=100)
    for number, token in enumerate((2_000_000_000, 100, 99)):
        writer.publish(number, phrase(token, 7))
        until(lambda: not writer.figures().waiting)
    until(lambda: reader.figures().received)  # counted last
    assert proposed_after(reader) == (99, 7)
    assert reader.figures().skipped == 2 and reader.figures().received == 1
    successors = reader.successors(100).rows
    shared, calibration = writer.index, Calibration()
    budget = DraftBudget(max_nodes=4, max_depth=4)
    grown = grow(
        (2_000_000_000,), budget, shared=shared, own=None, calibration=calibration,
        successors=successors,
    )  # fmt: skip
    assert set(grown.tree.token_ids) <= {7}


def test_evicted_namespace_frees_its_memory_while_being_read(
    open_store: Callable[..., PhraseStore],
) -> None:
    """Otherwise requests of more tenants than the limit would hold as many indexes."""
    store = open_store("memory://read", phrases_namespaces=1)
    first = store.namespace("m", "a")
    first.publish(1, phrase(5))
    assert proposed_after(first) == (5,) and first.index.bytes
    store.namespace("m", "b")
    until(lambda: not first.index.bytes)
    first.publish(2, phrase(6))
    assert proposed_after(first) == () and first.index.entries == 0


def test_clearing_removes_successors(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    both = [open_store(server.url).namespace("m") for _ in range(2)]
    for namespace in both:
        namespace.successors(8).learn([1], [2, 3])
    clear(server)
    until(lambda: all((namespace.successors(8).rows == -1).all() for namespace in both))


def test_idle_log_is_not_reported_lost(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    """A server may end a blocking read 0.1 s late, which is twice the timeout.

    A busy machine may be later still, so one of several tries must be without a failure.
    """
    reader = open_store(server.url, phrases_timeout_s=USUAL_S).namespace("m")
    writer = open_store(server.url).namespace("m")
    for number in range(TRIES):
        failures = reader.figures().failures
        for _ in range(3):
            time.sleep(1.3)
            writer.publish(number, phrase(5))
        until(lambda number=number: reader.figures().received == 3 * (number + 1))  # type: ignore[misc]
        if reader.figures().failures == failures:
            return
    pytest.fail("it was lost every time")


def test_large_records_are_read_in_smaller_parts(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    """A thousand of them would not arrive within the timeout, however often they were requested."""
    key, count = "draftloop:phrases:m:", 400
    large = encode(1, [Phrase(tuple(range(8)), tuple(range(64)))] * 256)
    with redis.Redis.from_url(server.url) as client:
        pipeline = client.pipeline(transaction=False)
        for number in range(count):
            pipeline.xadd(key, {"r": large if number % 2 else b"x" * 1_000_000})
        pipeline.execute()
    namespace = open_store(server.url, phrases_timeout_s=USUAL_S).namespace("m")
    assert namespace.wait_replayed(60)
    assert namespace.figures().skipped == count // 2
    assert namespace.figures().received == 256 * count // 2


def test_failure_reasons_do_not_contain_user_text(
    server: RedisServer, open_store: Callable[..., PhraseStore]
) -> None:
    with server.client() as client:
        client.config_set("maxmemory", 1)
    log = open_log(server.url, "m:acme", PATIENT)
    refused = pytest.raises(LogUnavailable, match=r"127.0.0.1:\d+: command not allowed when used")
    with refused as caught:
        log.append([encode(1, phrase(5))])
    assert "acme" not in str(caught.value) and "XADD" not in str(caught.value)
    log.close()


def test_full_server_can_be_cleared(server: RedisServer) -> None:
    log = open_log(server.url, "m:", PATIENT)
    log.append([encode(1, phrase(5))] * 10)
    with server.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] - 1)
        client.config_set("maxmemory-policy", "noeviction")
        with pytest.raises(LogUnavailable):
            log.append([encode(1, phrase(5))])
        with contextlib.suppress(LogUnavailable):  # fails if ten records free too little
            log.clear(encode_cleared(1))
            assert log.length() == 1
    log.close()
