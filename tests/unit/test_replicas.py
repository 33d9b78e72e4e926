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
    name: str, *, room: int = 8, running: int = 0, keeps: bool = True, **load: Any
) -> Replica:
    model = model_info(max_sessions=room, prefix_caching=keeps)
    one = Replica(name, FakeChannel(), model=model)
    one.report(ServiceLoad(running_sessions=running, **load))
    return one


def count_preferred(known: Replicas, times: int = 200) -> Counter[str]:
    return Counter(known.by_preference()[0].address for _ in range(times))


def test_less_busy_replica_is_preferred() -> None:
    known = Replicas([replica("busy", running=3), replica("idle", running=1)])
    assert count_preferred(known) == {"idle": 200}


def test_preference_considers_capacity_and_waiting_sessions() -> None:
    large, small = replica("large", room=32, running=6), replica("small", room=4, running=2)
    assert count_preferred(Replicas([large, small])) == {"large": 200}
    queued = replica("queued", running=1, waiting_sessions=5)
    assert count_preferred(Replicas([queued, replica("full", running=4)])) == {"full": 200}


def test_faster_replica_is_preferred_at_equal_load() -> None:
    known = Replicas([replica("slow", answer_ns=90_000), replica("fast", answer_ns=10_000)])
    assert count_preferred(known) == {"fast": 200}


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
    """Other orchestrators see the same loads; the least busy one must not get all sessions."""
    known = Replicas([replica(str(load), running=load) for load in range(6)])
    seen = count_preferred(known, 2000)
    assert seen.most_common(1)[0][0] == "0" and seen["0"] < 1000
    assert seen["5"] == 0 and len(seen) > 3


TEXT = list(range(100))


def test_replica_with_the_cached_prefix_is_preferred() -> None:
    # A replica that has computed the text's prefix is preferred, within one prefix group.
    one, other = replica("one", running=1), replica("other")
    known = Replicas([one, other])
    known.record_prefix(one, TEXT, "a")
    assert known.by_preference([*TEXT, 5], "a")[0] is one
    for text, group in ((TEXT, "b"), (TEXT, None), ([5, *TEXT], "a")):
        assert known.by_preference(text, group)[0] is other


def test_replica_without_prefix_caching_has_no_prefixes() -> None:
    one, other = replica("one", running=1, keeps=False), replica("other")
    known = Replicas([one, other])
    known.record_prefix(one, TEXT, "a")
    assert known.cached_tokens(TEXT, "a") == 0 and known.by_preference(TEXT, "a")[0] is other


def test_cached_prefix_is_ignored_on_a_busier_or_failed_replica() -> None:
    # The replica with the prefix is not preferred if it is much busier or cannot serve.
    one, other = replica("one", running=2), replica("other")
    known = Replicas([one, other])
    known.record_prefix(one, TEXT, "")
    assert known.by_preference(TEXT, "")[0] is other
    one.report(ServiceLoad())
    assert known.by_preference(TEXT, "")[0] is one
    one.record_failure()
    assert known.by_preference(TEXT, "")[0] is other
    one.record_success()
    known.leave(one)
    assert known.by_preference(TEXT, "") == [other]


def test_prefix_lookup_is_skipped_without_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round asks again while there is no drafter, and texts may be long."""
    one, other = replica("one"), replica("other")
    known, read = Replicas([one, other]), list[int]()
    find = known._prefixes.find

    def counted(tokens: Sequence[int], group: str) -> tuple[Replica | None, int]:
        read.append(len(tokens))
        return find(tokens, group)

    monkeypatch.setattr(known._prefixes, "find", counted)
    assert len(known.by_preference(TEXT, "")) == 2 and read == [len(TEXT)]
    one.record_failure()
    assert known.by_preference(TEXT, "") == [other, one]
    other.record_failure()
    assert len(known.by_preference(TEXT, "")) == 2 and read == [len(TEXT)]


def test_resting_replicas_come_last() -> None:
    tired, busy = replica("tired"), replica("busy", running=7)
    tired.record_failure()
    known = Replicas([tired, busy])
    assert [each.address for each in known.by_preference()] == ["busy", "tired"]


@pytest.mark.parametrize("state", ["IDLE", "CONNECTING", "TRANSIENT_FAILURE"])
def test_disconnected_replicas_come_before_resting_ones(state: str) -> None:
    tired, gone, busy = replica("tired"), replica("gone"), replica("busy", running=7)
    tired.record_failure()
    gone.channel.state = grpc.ChannelConnectivity[state]
    known = Replicas([tired, gone, busy])
    assert [each.address for each in known.by_preference()] == ["busy", "gone", "tired"]


def test_model_limits_are_the_least_of_all_replicas() -> None:
    # The limits for requests are the lowest of all replicas.
    known = Replicas()
    assert known.model is None
    roomy = Replica("a", None, model=model_info(context_length=64, max_draft_nodes=8))
    known.join(roomy)
    narrow = Replica("b", None, model=model_info(context_length=32, max_draft_nodes=16))
    known.join(narrow)
    assert known.model is not None
    assert (known.model.context_length, known.model.max_draft_nodes) == (32, 8)
    known.leave(narrow)
    assert known.model.context_length == 64
    known.leave(roomy)
    assert known.model.context_length == 64 and not known, "what was known stays known"


@pytest.mark.parametrize(
    "changed", [{"model_fingerprint": "cc"}, {"dtype": "bfloat16"}, {"quantization": "int8"}]
)
def test_model_mismatch_names_both_models(changed: dict[str, str]) -> None:
    with pytest.raises(Mismatch) as caught:
        model_info().require_same_model(model_info(**changed))
    for word in ("aa", "float32", *changed.values()):
        assert word in str(caught.value)


def test_sessions_on_left_replicas_count_until_they_end() -> None:
    """The gauge used to fall to 0 while they were running."""
    one, other, idle = replica("one"), replica("other"), replica("idle")
    one.sessions, other.sessions = 2, 3
    known = Replicas([one, other, idle])
    for gone in (other, idle):
        known.leave(gone)
        known.leave(gone)
    assert known.sessions == 5
    known.join(other)
    assert known.sessions == 5
    known.leave(other)
    other.sessions = 0
    known.leave(one)
    assert known.sessions == 2 and len(known) == 0


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
