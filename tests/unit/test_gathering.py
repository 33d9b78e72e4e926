"""A forward pass waits for sessions that are about to ask if that gives more answers a second."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from draftloop.cost_line import CostLine
from draftloop.runtime import gathering as gathering_module
from draftloop.runtime.engine import Engine
from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.gathering import FIRST_DEVIATION, MAX_ABSENCE_NS, Gathering
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.model import LanguageModel
from draftloop.tree import ServiceTimings
from tests.support.gate import Gate
from tests.support.toy_model import FakeModel

MS = 1_000_000
WAIT_S, AWAY_S = 20.0, 0.3


def cost_line_of(*times_ms: float) -> CostLine:
    """Costs of 1, 2, 4 ... rows."""
    rows = tuple(2**place for place in range(len(times_ms)))
    times = tuple(time * MS for time in times_ms)
    return CostLine(0, 1, rows, times, tuple(range(len(rows))))


WEIGHTS_FIRST = cost_line_of(10, 10, 10, 10, 10)  # a further row costs nothing
ROWS_FIRST = cost_line_of(10, 20, 40, 80, 160)  # together costs as much as apart


def record_absences(
    gathering: Gathering, session: str, absence_ms: float, rows: int = 1, times: int = 4
) -> int:
    """Records `times` absences of a session; returns the time of its last answer."""
    now_ns = 0
    gathering.record_request(session, rows, now_ns)
    for _ in range(times):
        gathering.record_answer(session, now_ns)
        now_ns += round(absence_ms * MS)
        gathering.record_request(session, rows, now_ns)
    gathering.record_answer(session, now_ns)
    return now_ns


def gathering_of(costs: CostLine) -> Gathering:
    return Gathering(lambda: costs)


def test_unknown_sessions_are_not_waited_for() -> None:
    gathering = gathering_of(WEIGHTS_FIRST)
    assert gathering.wait_ns(1, 1, 0) == 0
    gathering.record_answer("never asked", 0)
    gathering.record_request("once", 1, 0)
    gathering.record_answer("once", 0)
    assert gathering.wait_ns(1, 1, 0) == 0


def test_session_due_soon_is_waited_for_when_rows_are_cheap() -> None:
    gathering = gathering_of(WEIGHTS_FIRST)
    last_answer_ns = record_absences(gathering, "soon", 2)
    patience = gathering.wait_ns(1, 1, last_answer_ns)
    assert 2 * MS <= patience <= 3 * MS
    assert gathering.wait_ns(1, 1, last_answer_ns + MS) == patience - MS
    assert gathering.wait_ns(1, 1, last_answer_ns + 4 * MS) == 0  # overdue
    gathering.remove("soon")
    assert gathering.wait_ns(1, 1, last_answer_ns) == 0


def test_irregular_session_is_waited_for_longer() -> None:
    gathering = gathering_of(WEIGHTS_FIRST)
    last_answer_ns = record_absences(gathering, "soon", 2, times=1)
    assert gathering.wait_ns(1, 1, last_answer_ns) == 2 * MS * (1 + FIRST_DEVIATION)
    now = last_answer_ns
    for number in range(40):
        now += (1 + number % 2 * 2) * MS  # 1 and 3 ms in turn
        gathering.record_request("soon", 1, now)
        gathering.record_answer("soon", now)
    assert gathering.wait_ns(1, 1, now) > 2.7 * MS


def test_wait_requires_a_clear_gain() -> None:
    """1 answer in 10 ms at once, or 2 in about 18.8 ms, or in 17.3 ms."""
    for together, is_waited_for in ((16.5, False), (15.0, True)):
        gathering = gathering_of(cost_line_of(10, together))
        last_answer_ns = record_absences(gathering, "soon", 2)
        assert (gathering.wait_ns(1, 1, last_answer_ns) > 0) is is_waited_for


def test_no_wait_when_every_row_costs_the_same() -> None:
    gathering = gathering_of(ROWS_FIRST)
    last_answer_ns = record_absences(gathering, "soon", 2)
    assert gathering.wait_ns(1, 1, last_answer_ns) == 0


def test_session_absent_for_a_forward_is_not_waited_for() -> None:
    gathering = gathering_of(WEIGHTS_FIRST)
    last_answer_ns = record_absences(gathering, "drafts", 12)
    assert gathering.wait_ns(1, 1, last_answer_ns) == 0


def test_wait_covers_only_sessions_that_raise_throughput() -> None:
    gathering = gathering_of(WEIGHTS_FIRST)
    record_absences(gathering, "soon", 2)
    record_absences(gathering, "late", 9)
    for session in ("soon", "late"):
        gathering.record_answer(session, 100 * MS)
    patience = gathering.wait_ns(1, 1, 100 * MS)
    assert 2 * MS <= patience <= 3 * MS


def test_long_absence_resets_the_sessions_statistics() -> None:
    gathering = gathering_of(WEIGHTS_FIRST)
    last_answer_ns = record_absences(gathering, "pauses", 2)
    return_ns = last_answer_ns + MAX_ABSENCE_NS + MS
    gathering.record_request("pauses", 1, return_ns)
    gathering.record_answer("pauses", return_ns)
    assert gathering.wait_ns(1, 1, return_ns) == 0
    gathering.record_request("pauses", 1, return_ns + 2 * MS)
    gathering.record_answer("pauses", return_ns + 2 * MS)
    assert gathering.wait_ns(1, 1, return_ns + 2 * MS) > 0


@given(
    absences=st.lists(st.floats(0.1, 30), min_size=1, max_size=8),
    waiting=st.integers(1, 8),
    slope=st.floats(0, 20),
)
def test_wait_never_lowers_throughput(absences: list[float], waiting: int, slope: float) -> None:
    costs = cost_line_of(*(10 + slope * (2**place - 1) for place in range(6)))
    gathering = gathering_of(costs)
    for number, absence in enumerate(absences):
        record_absences(gathering, str(number), absence)
    now = 10_000 * MS
    for number in range(len(absences)):
        gathering.record_answer(str(number), now)
    patience = gathering.wait_ns(waiting, waiting, now)
    if patience:
        # at the latest moment that a session is due, deviations included
        arrivals = sum(absence * MS * 0.999 <= patience for absence in absences)
        rate_with_wait = (waiting + arrivals) / (patience + costs.nanoseconds(waiting + arrivals))
        assert rate_with_wait > waiting / costs.nanoseconds(waiting)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(gathering_module, "MAX_ABSENCE_NS", 60_000 * MS)
    running = Engine(gathering=gathering_of(cost_line_of(5000, 5000, 5000)))
    yield running
    running.stop()


def one_forward_task(model: FakeModel, slot: str) -> Task[str]:
    logits: Tensor = yield Forward(cast(LanguageModel, model), cast(Slot, slot), [0])
    assert logits.shape == (1, 1)
    return slot


def submit(
    engine: Engine, model: FakeModel, slot: str, timings: ServiceTimings | None = None
) -> Any:
    return engine.submit(one_forward_task(model, slot), timings)


def warm_up_two_sessions(engine: Engine, model: FakeModel) -> None:
    """Two sessions with absences of 0.3 s; both have just been answered."""
    for _ in range(3):
        for future in [submit(engine, model, slot) for slot in "ab"]:
            future.result(WAIT_S)
        time.sleep(AWAY_S)
    for future in [submit(engine, model, slot) for slot in "ab"]:
        future.result(WAIT_S)


def last_batch_slots(model: FakeModel) -> list[Any]:
    return [forward.slot for forward in model.batches[-1]]


def test_engine_waits_for_the_second_session(engine: Engine) -> None:
    model, timings = FakeModel(), ServiceTimings()
    warm_up_two_sessions(engine, model)
    first = submit(engine, model, "b", timings)
    time.sleep(0.002)
    second = submit(engine, model, "a")
    assert {first.result(WAIT_S), second.result(WAIT_S)} == {"a", "b"}
    assert last_batch_slots(model) == ["b", "a"]
    assert (timings.batch_size, timings.batch_rows, timings.waiting) == (2, 2, 0)
    assert timings.queue_ns > MS


def test_engine_continues_when_the_second_session_is_late(engine: Engine) -> None:
    model = FakeModel()
    warm_up_two_sessions(engine, model)
    assert submit(engine, model, "a").result(WAIT_S) == "a"
    assert last_batch_slots(model) == ["a"]


def test_ended_session_is_not_waited_for(engine: Engine) -> None:
    model = FakeModel()
    warm_up_two_sessions(engine, model)
    assert not is_alone(engine, "a")
    leave(engine, "b")
    assert is_alone(engine, "a")  # it does not wait for itself, although it was away a moment ago
    leave(engine, "a")
    assert is_alone(engine, "b")


def test_session_with_several_slots_counts_once(engine: Engine) -> None:
    """A cascade session that came back through one model is not waited for at another."""
    model = FakeModel()
    for slots_in_turn in ("ab", "ba", "ab", "ba"):
        task = cascade_task(engine, model, slots_in_turn)
        assert not engine.submit(task, session_slot=cast(Slot, "ab")).result(WAIT_S)
        time.sleep(AWAY_S)
    engine.submit(cascade_task(engine, model, "ab"), session_slot=cast(Slot, "ab")).result(WAIT_S)
    assert is_alone(engine, "ab")
    leave(engine, "ab")


def cascade_task(engine: Engine, model: FakeModel, slots_in_turn: str) -> Task[bool]:
    """Whether any session could have been waited for at one of its forwards."""
    has_absent = False
    for slot in slots_in_turn:
        yield Forward(cast(LanguageModel, model), cast(Slot, slot), [0])
        has_absent |= engine._gathering.has_absent
    return has_absent


def is_alone(engine: Engine, slot: str) -> bool:
    def asking() -> Task[bool]:
        yield from ()
        return engine.is_alone

    return engine.submit(asking(), session_slot=cast(Slot, slot)).result(WAIT_S)


def leave(engine: Engine, slot: str) -> None:
    engine.call(functools.partial(engine.session_ended, cast(Slot, slot))).result(WAIT_S)


def test_forward_reports_the_number_of_waiting_sessions() -> None:
    engine, model, other_model = Engine(), FakeModel(), FakeModel()
    gate = Gate(engine)
    first, second = ServiceTimings(), ServiceTimings()
    futures = [submit(engine, model, "a", first), submit(engine, other_model, "b", second)]
    engine.call(lambda: None)  # belongs to no session
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    engine.stop()
    assert (first.batch_size, first.batch_rows, first.waiting) == (1, 1, 1)
    assert (second.batch_size, second.batch_rows, second.waiting) == (1, 1, 0)


def test_warm_up_sessions_are_forgotten() -> None:
    """A warm-up's sessions never end."""
    gathering = Gathering(lambda: cost_line_of(1.0))
    gathering.record_request("warm-up", 1, now=0)
    gathering.record_answer("warm-up", now=1)
    assert gathering.has_absent
    gathering.forget()
    assert not gathering.has_absent
