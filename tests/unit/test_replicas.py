"""The choice of a replica for a new session, by reported load and what is known since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

import orchestrator.replicas
from draftloop.errors import Mismatch
from draftloop.load import ServiceLoad
from orchestrator.replicas import FIRST_REST_S, MAX_REST_S, Replica, Replicas
from tests.support.model_info import model_info


@dataclass
class FakeChannel:
    state: grpc.ChannelConnectivity = grpc.ChannelConnectivity.READY

    def get_state(self) -> grpc.ChannelConnectivity:
        return self.state


def replica(
    name: str, *, max_sessions: int = 8, running: int = 0, prefix_caching: bool = True, **load: Any
) -> Replica:
    model = model_info(max_sessions=max_sessions, prefix_caching=prefix_caching)
    one = Replica(name, FakeChannel(), model=model)
    one.report(ServiceLoad(running_sessions=running, **load))
    return one


def count_preferred(replicas: Replicas, times: int = 200) -> Counter[str]:
    return Counter(replicas.by_preference()[0].address for _ in range(times))


def test_less_busy_replica_is_preferred() -> None:
    replicas = Replicas([replica("busy", running=3), replica("idle", running=1)])
    assert count_preferred(replicas) == {"idle": 200}


def test_preference_considers_capacity_and_waiting_sessions() -> None:
    large, small = (
        replica("large", max_sessions=32, running=6),
        replica("small", max_sessions=4, running=2),
    )
    assert count_preferred(Replicas([large, small])) == {"large": 200}
    queued = replica("queued", running=1, waiting_sessions=5)
    assert count_preferred(Replicas([queued, replica("full", running=4)])) == {"full": 200}


def test_faster_replica_is_preferred_at_equal_load() -> None:
    replicas = Replicas([replica("slow", answer_ns=90_000), replica("fast", answer_ns=10_000)])
    assert count_preferred(replicas) == {"fast": 200}


def test_locally_opened_sessions_count_before_the_next_report() -> None:
    one, other = replica("one", running=2), replica("other", running=3)
    one.sessions += 2
    assert count_preferred(Replicas([one, other])) == {"other": 200}
    one.report(ServiceLoad(running_sessions=2))  # others' sessions have ended meanwhile
    assert one.load < other.load


def test_local_sessions_missing_from_the_report_count() -> None:
    """After a restart, the service does not report sessions that have not been seen to break."""
    one = replica("one")
    one.sessions = 4
    one.report(ServiceLoad(running_sessions=0))
    assert one.load[0] == 4 / 8


def test_new_sessions_are_spread_over_many_replicas() -> None:
    """All orchestrators see the same loads; the least busy replica must not get all sessions."""
    replicas = Replicas([replica(str(load), running=load) for load in range(6)])
    counts = count_preferred(replicas, 2000)
    assert counts.most_common(1)[0][0] == "0" and counts["0"] < 1000
    assert counts["5"] == 0 and len(counts) > 3


TEXT = list(range(100))


def test_replica_with_the_cached_prefix_is_preferred() -> None:
    # A replica that has computed the text's prefix is preferred, within one prefix group.
    one, other = replica("one", running=1), replica("other")
    replicas = Replicas([one, other])
    replicas.record_prefix(one, TEXT, "a")
    assert replicas.by_preference([*TEXT, 5], "a")[0] is one
    for text, group in ((TEXT, "b"), (TEXT, None), ([5, *TEXT], "a")):
        assert replicas.by_preference(text, group)[0] is other


def test_replica_without_prefix_caching_has_no_prefixes() -> None:
    one, other = replica("one", running=1, prefix_caching=False), replica("other")
    replicas = Replicas([one, other])
    replicas.record_prefix(one, TEXT, "a")
    assert replicas.cached_tokens(TEXT, "a") == 0 and replicas.by_preference(TEXT, "a")[0] is other


def test_cached_prefix_is_ignored_on_a_busier_or_failed_replica() -> None:
    # The replica with the prefix is not preferred if it is much busier or cannot serve.
    one, other = replica("one", running=2), replica("other")
    replicas = Replicas([one, other])
    replicas.record_prefix(one, TEXT, "")
    assert replicas.by_preference(TEXT, "")[0] is other
    one.report(ServiceLoad())
    assert replicas.by_preference(TEXT, "")[0] is one
    one.record_failure()
    assert replicas.by_preference(TEXT, "")[0] is other
    one.record_success()
    replicas.leave(one)
    assert replicas.by_preference(TEXT, "") == [other]


def test_prefix_lookup_is_skipped_without_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a drafter, every round asks for one again, and texts may be long."""
    one, other = replica("one"), replica("other")
    replicas, lookups = Replicas([one, other]), list[int]()
    find = replicas._prefixes.find

    def counting_find(tokens: Sequence[int], group: str) -> tuple[Replica | None, int]:
        lookups.append(len(tokens))
        return find(tokens, group)

    monkeypatch.setattr(replicas._prefixes, "find", counting_find)
    assert len(replicas.by_preference(TEXT, "")) == 2 and lookups == [len(TEXT)]
    one.record_failure()
    assert replicas.by_preference(TEXT, "") == [other, one]
    other.record_failure()
    assert len(replicas.by_preference(TEXT, "")) == 2 and lookups == [len(TEXT)]


def test_resting_replicas_come_last() -> None:
    resting, busy = replica("tired"), replica("busy", running=7)
    resting.record_failure()
    replicas = Replicas([resting, busy])
    assert [each.address for each in replicas.by_preference()] == ["busy", "tired"]


@pytest.mark.parametrize("state", ["IDLE", "CONNECTING", "TRANSIENT_FAILURE"])
def test_disconnected_replicas_come_before_resting_ones(state: str) -> None:
    resting, disconnected, busy = replica("tired"), replica("gone"), replica("busy", running=7)
    resting.record_failure()
    disconnected.channel.state = grpc.ChannelConnectivity[state]
    replicas = Replicas([resting, disconnected, busy])
    assert [each.address for each in replicas.by_preference()] == ["busy", "gone", "tired"]


def test_model_limits_are_the_least_of_all_replicas() -> None:
    # The limits for requests are the lowest of all replicas.
    replicas = Replicas()
    assert replicas.model is None
    larger = Replica("a", None, model=model_info(context_length=64, max_draft_nodes=8))
    replicas.join(larger)
    smaller = Replica("b", None, model=model_info(context_length=32, max_draft_nodes=16))
    replicas.join(smaller)
    assert replicas.model is not None
    assert (replicas.model.context_length, replicas.model.max_draft_nodes) == (32, 8)
    replicas.leave(smaller)
    assert replicas.model.context_length == 64
    replicas.leave(larger)
    assert replicas.model.context_length == 64 and not replicas, "what was known stays known"


@pytest.mark.parametrize(
    "changed", [{"model_fingerprint": "cc"}, {"dtype": "bfloat16"}, {"quantization": "int8"}]
)
def test_model_mismatch_names_both_models(changed: dict[str, str]) -> None:
    with pytest.raises(Mismatch) as caught:
        model_info().require_same_model(model_info(**changed))
    for value in ("aa", "float32", *changed.values()):
        assert value in str(caught.value)


def test_sessions_on_left_replicas_count_until_they_end() -> None:
    """The gauge used to fall to 0 while such sessions were running."""
    one, other, idle = replica("one"), replica("other"), replica("idle")
    one.sessions, other.sessions = 2, 3
    replicas = Replicas([one, other, idle])
    for leaving in (other, idle):
        replicas.leave(leaving)
        replicas.leave(leaving)
    assert replicas.sessions == 5
    replicas.join(other)
    assert replicas.sessions == 5
    replicas.leave(other)
    other.sessions = 0
    replicas.leave(one)
    assert replicas.sessions == 2 and len(replicas) == 0


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still unless the test sets it."""
    clock = SimpleNamespace(seconds=100.0)
    stopped = SimpleNamespace(monotonic=lambda: clock.seconds)
    monkeypatch.setattr(orchestrator.replicas, "time", stopped)
    return clock


def test_only_new_forwards_reset_the_silence(fake_clock: SimpleNamespace) -> None:
    one = replica("one", forwards=5)
    fake_clock.seconds += 3
    one.report(ServiceLoad(forwards=5))
    assert one.silence_s() == 3
    one.report(ServiceLoad(forwards=6))
    assert one.silence_s() == 0


def test_rest_after_failures_is_bounded(fake_clock: SimpleNamespace) -> None:
    one = replica("one")
    rests = []
    for _ in range(9):
        one.record_failure()
        rests.append(one.resting_until - fake_clock.seconds)
    assert rests[:3] == [FIRST_REST_S, 2 * FIRST_REST_S, 4 * FIRST_REST_S]
    assert rests[-1] == MAX_REST_S
    one.record_success()
    assert not one.is_resting


def test_only_failed_replica_rests_during_a_trial(
    fake_clock: SimpleNamespace,
) -> None:
    # A failed replica is tried by one request at a time; one that has not failed serves all.
    one = replica("one")
    one.reserve_for_trial(9)
    assert not one.is_resting
    one.record_failure()
    fake_clock.seconds += 1
    assert not one.is_resting
    one.reserve_for_trial(9)
    assert one.is_resting
