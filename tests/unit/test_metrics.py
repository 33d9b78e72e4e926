"""Metrics: served over HTTP, read from live objects, counters that never decrease."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from draftloop.errors import (
    Forbidden,
    InvalidInput,
    Overloaded,
    StartupFailure,
    Unauthenticated,
    Unavailable,
)
from draftloop.metrics import REGISTRY, Live
from draftloop.metrics_server import serving_metrics
from draftloop.phrase import Phrase
from draftloop.tree import Draft, DraftTree, ServiceTimings, TokenSource, Verdict, Verification
from orchestrator import metrics
from orchestrator.figures import RoundTimes
from orchestrator.replicas import Replica, Replicas
from orchestrator.stream import NoAnswer
from phrase_store.config import PhraseSettings
from phrase_store.store import PhraseStore
from tests.support.ports import quiet_port
from tests.support.waiting import until
from verifier_service.config import VerifierSettings


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_metrics_are_served_until_shutdown() -> None:
    port = quiet_port()
    with serving_metrics(f"127.0.0.1:{port}"):
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics")
        assert answer.status_code == 200 and "draftloop_build_info" in answer.text
    with serving_metrics(f"127.0.0.1:{port}"):  # the port is free again
        pass


def test_metrics_address_in_use_fails_startup() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartupFailure, match="metrics_listen"), serving_metrics(address):
            pass


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("metrics_listen", "9464"),
        ("trace_endpoint", "collector:4317"),
        ("trace_endpoint", "http://collector"),  # gRPC connected to port 443
        ("trace_endpoint", "http://collector:4318/v1/traces"),
        ("trace_endpoint", "http://"),
        ("trace_ratio", "1.5"),
    ],
)
def test_invalid_settings_are_named(name: str, wrong: str) -> None:
    with pytest.raises(StartupFailure, match=name):
        VerifierSettings.from_command_line([f"--{name.replace('_', '-')}", wrong])


def test_session_gauge_covers_left_replicas_and_empty_roles() -> None:
    # Sessions on replicas that have left are counted; a role without replicas has the value 0.
    left, staying = (Replica(name, None, sessions=2) for name in ("a", "b"))
    verifiers = Replicas([left, staying])
    verifiers.leave(left)
    by_role = {"verifier": verifiers, "drafter": Replicas()}
    deployment = SimpleNamespace(replicas=lambda: by_role)
    replicas, sessions = metrics._deployments([deployment, deployment])  # type: ignore[list-item]
    reported = {sample.labels["role"]: sample.value for sample in sessions.samples}
    assert reported == {"verifier": 8, "drafter": 0}
    ready = [one.value for one in replicas.samples if one.labels["state"] == "ready"]
    assert ready == [2, 0]


def test_live_metrics_drop_collected_objects() -> None:
    class Thing:
        pass

    def count(things: Sequence[Thing]) -> Iterable[Metric]:
        family = GaugeMetricFamily("draftloop_test_things", "Things.")
        family.add_metric([], len(things))
        yield family

    live = Live(count)
    try:
        forgotten, collected = Thing(), Thing()
        live.watch(forgotten)
        live.watch(collected)
        assert value("draftloop_test_things") == 2
        live.forget(forgotten)
        del collected
        gc.collect()
        assert value("draftloop_test_things") == 0
    finally:
        REGISTRY.unregister(live)


def test_errors_map_to_reason_labels() -> None:
    errors = (
        InvalidInput("a", "b", 1),
        Overloaded("x"),
        NoAnswer("x"),
        Unavailable("x"),
        Unauthenticated("x"),
        Forbidden("x"),
        KeyError(),
    )
    names = ["invalid_input", "overloaded", "no_answer", "unavailable"]
    names += ["unauthenticated", "forbidden", "internal"]
    assert [metrics.reason_of(error) for error in errors] == names


def test_hops_of_a_round_add_up_to_its_time() -> None:
    draft = ServiceTimings(service_ns=50, forward_ns=30, queue_ns=5)
    verify = ServiceTimings(service_ns=80, forward_ns=60, queue_ns=10)
    hops = RoundTimes(draft_ns=55, verify_ns=90, round_ns=160).hops(draft, verify)
    assert hops == {"draft": 30, "verify": 60, "queue": 15, "wire": 15, "lost": 0, "rest": 40}


def test_timeouts_are_not_counted_as_wire_time() -> None:
    """A drafter's or verifier's timeout must not count as `wire`, which shows network distances."""
    free, verify = ServiceTimings(service_ns=20), ServiceTimings(service_ns=80, forward_ns=60)
    times = RoundTimes(draft_ns=1020, verify_ns=90, round_ns=1150, fell_back=True)
    hops = times.hops(free, verify)
    assert hops == {"draft": 0, "verify": 60, "queue": 0, "wire": 10, "lost": 1000, "rest": 80}
    times = RoundTimes(draft_ns=20, verify_ns=5080, round_ns=5200, reopened=True)
    hops = times.hops(free, verify)
    assert hops == {"draft": 0, "verify": 60, "queue": 0, "wire": 0, "lost": 5000, "rest": 140}


def test_request_is_counted_once_however_it_ends() -> None:
    meter = metrics.RequestMeter("speculative")
    before = value("draftloop_num_requests_waiting"), value("draftloop_num_requests_running")
    meter.record_start()
    assert value("draftloop_num_requests_waiting") == before[0] + 1
    meter.record_first_token(prompt_tokens=5, waited_ns=1000, tokens=1)
    assert value("draftloop_num_requests_waiting") == before[0]
    assert value("draftloop_num_requests_running") == before[1] + 1
    failures = value("draftloop_request_failure_total", reason="unavailable")
    assert meter.record_end(None, Unavailable("gone"), 5, 1) == "unavailable"
    assert value("draftloop_request_failure_total", reason="unavailable") == failures + 1
    assert value("draftloop_num_requests_running") == before[1]


def test_disconnect_after_the_last_token_is_not_an_abort() -> None:
    # A client that leaves after the last token does not count as an abort.
    for finish_reason, outcome in (("stop", "stop"), (None, "abort")):
        meter = metrics.RequestMeter("fused")
        meter.record_start()
        assert meter.record_end(finish_reason, GeneratorExit(), 1, 1) == outcome


def test_round_counts_accepted_tokens_by_position_and_source() -> None:
    tree = DraftTree.chain((7, 8, 9), TokenSource.PHRASE)
    verdict = Verdict((0, 1), (7, 8, 4), 7, (8, 4, 5))
    answer = Verification(verdict=verdict, committed_length=3)
    names = ("draft_tokens", "accepted_tokens", "drafts")

    def counts() -> list[float]:
        spec = [f"draftloop_spec_decode_num_{name}_total" for name in names]
        positions = "draftloop_spec_decode_num_accepted_tokens_per_pos_total"
        return [
            *(value(name, strategy="ouroboros") for name in spec),
            *(value(positions, position=str(place)) for place in range(3)),
            value("draftloop_accepted_tokens_by_source_total", source="phrase"),
        ]

    before = counts()
    meter = metrics.RequestMeter("ouroboros")
    draft = Draft(tree=tree, committed_length=3)
    meter.record_round(draft, answer, 3, RoundTimes(draft_ns=1, verify_ns=2, round_ns=5))
    after = [new - old for new, old in zip(counts(), before, strict=True)]
    assert after == [3, 2, 1, 1, 1, 0, 2]


def test_phrase_counters_outlive_their_namespace() -> None:
    """Prometheus treats a decreasing counter as a reset and would count everything again."""
    store = PhraseStore(PhraseSettings(phrases_url="memory://metrics", phrases_namespaces=1))
    try:
        first = store.namespace("model", "a")
        first.publish(1, [Phrase((1, 2), (3,), True)])
        until(lambda: store.figures().published == 1)
        store.namespace("model", "b")
        after = store.figures()
        assert (after.namespaces, after.entries, after.published) == (1, 0, 1)
        assert value("draftloop_phrases_published_total") >= 1
    finally:
        store.close()
