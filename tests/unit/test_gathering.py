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


def line(*times_ms: float) -> CostLine:
    """Costs of 1, 2, 4 ... rows."""
    rows = tuple(2**place for place in range(len(times_ms)))
    times = tuple(time * MS for time in times_ms)
    return CostLine(0, 1, rows, times, tuple(range(len(rows))))


WEIGHTS_FIRST = line(10, 10, 10, 10, 10)  # a further row costs nothing
ROWS_FIRST = line(10, 20, 40, 80, 160)  # together costs as much as apart


def seen(gathering: Gathering, party: str, absence_ms: float, rows: int = 1, times: int = 4) -> int:
    """A session that was away `times` times and has left again; returns when it left."""
    now = 0
    gathering.record_request(party, rows, now)
    for _ in range(times):
        gathering.record_answer(party, now)
        now += round(absence_ms * MS)
        gathering.record_request(party, rows, now)
    gathering.record_answer(party, now)
    return now


def gathering_of(costs: CostLine) -> Gathering:
    return Gathering(lambda: costs)


def test_nobody_is_waited_for_who_is_not_known() -> None:
    gathering = gathering_of(WEIGHTS_FIRST)
    assert gathering.wait_ns(1, 1, 0) == 0
    gathering.record_answer("never asked", 0)
    gathering.record_request("once", 1, 0)
    gathering.record_answer("once", 0)
    assert gathering.wait_ns(1, 1, 0) == 0


def test_who_comes_back_soon_is_waited_for_where_rows_are_cheap() -> None:
    gathering = gathering_of(WEIGHTS_FIRST)
    left = seen(gathering, "soon", 2)
    patience = gathering.wait_ns(1, 1, left)
    assert 2 * MS <= patience <= 3 * MS
    assert gathering.wait_ns(1, 1, left + MS) == patience - MS
    assert gathering.wait_ns(1, 1, left + 4 * MS) == 0  # overdue
    gathering.remove("soon")
    assert gathering.wait_ns(1, 1, left) == 0


def test_who_comes_back_unsteadily_is_waited_for_a_little_longer() -> None:
    gathering = gathering_of(WEIGHTS_FIRST)
    left = seen(gathering, "soon", 2, times=1)
    assert gathering.wait_ns(1, 1, left) == 2 * MS * (1 + FIRST_DEVIATION)
    now = left
    for number in range(40):
        now += (1 + number % 2 * 2) * MS  # 1 and 3 ms in turn
        gathering.record_request("soon", 1, now)
        gathering.record_answer("soon", now)
    assert gathering.wait_ns(1, 1, now) > 2.7 * MS


def test_what_a_wait_brings_must_be_clearly_more() -> None:
    """1 answer in 10 ms at once, or 2 in about 18.8 ms, or in 17.3 ms."""
    for together, waits in ((16.5, False), (15.0, True)):
        gathering = gathering_of(line(10, together))
        left = seen(gathering, "soon", 2)
        assert (gathering.wait_ns(1, 1, left) > 0) is waits


def test_nobody_is_waited_for_where_every_row_costs_as_much() -> None:
    gathering = gathering_of(ROWS_FIRST)
    left = seen(gathering, "soon", 2)
    assert gathering.wait_ns(1, 1, left) == 0


def test_who_stays_away_as_long_as_a_forward_takes_is_not_waited_for() -> None:
    gathering = gathering_of(WEIGHTS_FIRST)
    left = seen(gathering, "drafts", 12)
    assert gathering.wait_ns(1, 1, left) == 0


def test_the_wait_is_for_those_who_raise_the_answers_a_second() -> None:
    gathering = gathering_of(WEIGHTS_FIRST)
    seen(gathering, "soon", 2)
    seen(gathering, "late", 9)
    for party in ("soon", "late"):
        gathering.record_answer(party, 100 * MS)
    patience = gathering.wait_ns(1, 1, 100 * MS)
    assert 2 * MS <= patience <= 3 * MS


def test_a_long_absence_is_forgotten_with_what_was_known() -> None:
    gathering = gathering_of(WEIGHTS_FIRST)
    left = seen(gathering, "pauses", 2)
    back = left + MAX_ABSENCE_NS + MS
    gathering.record_request("pauses", 1, back)
    gathering.record_answer("pauses", back)
    assert gathering.wait_ns(1, 1, back) == 0
    gathering.record_request("pauses", 1, back + 2 * MS)
    gathering.record_answer("pauses", back + 2 * MS)
    assert gathering.wait_ns(1, 1, back + 2 * MS) > 0


@given(
    absences=st.lists(st.floats(0.1, 30), min_size=1, max_size=8),
    waiting=st.integers(1, 8),
    slope=st.floats(0, 20),
)
def test_a_wait_never_lowers_the_answers_a_second(
    absences: list[float], waiting: int, slope: float
) -> None:
    costs = line(*(10 + slope * (2**place - 1) for place in range(6)))
    gathering = gathering_of(costs)
    for number, absence in enumerate(absences):
        seen(gathering, str(number), absence)
    now = 10_000 * MS
    for number in range(len(absences)):
        gathering.record_answer(str(number), now)
    patience = gathering.wait_ns(waiting, waiting, now)
    if patience:
        # at the latest moment that a session is due, deviations included
        come = sum(absence * MS * 0.999 <= patience for absence in absences)
        with_them = (waiting + come) / (patience + costs.nanoseconds(waiting + come))
        assert with_them > waiting / costs.nanoseconds(waiting)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(gathering_module, "MAX_ABSENCE_NS", 60_000 * MS)
    running = Engine(gathering=gathering_of(line(5000, 5000, 5000)))
    yield running
    running.stop()


def task(model: FakeModel, slot: str) -> Task[str]:
    logits: Tensor = yield Forward(cast(LanguageModel, model), cast(Slot, slot), [0])
    assert logits.shape == (1, 1)
    return slot


def ask(engine: Engine, model: FakeModel, slot: str, timings: ServiceTimings | None = None) -> Any:
    return engine.submit(task(model, slot), timings)


def come_and_go(engine: Engine, model: FakeModel) -> None:
    """Two sessions with absences of 0.3 s; both have just been answered."""
    for _ in range(3):
        for future in [ask(engine, model, slot) for slot in "ab"]:
            future.result(WAIT_S)
        time.sleep(AWAY_S)
    for future in [ask(engine, model, slot) for slot in "ab"]:
        future.result(WAIT_S)


def slots(model: FakeModel) -> list[Any]:
    return [forward.slot for forward in model.batches[-1]]


def test_the_engine_waits_for_the_other_of_two_sessions(engine: Engine) -> None:
    model, timings = FakeModel(), ServiceTimings()
    come_and_go(engine, model)
    first = ask(engine, model, "b", timings)
    time.sleep(0.002)
    second = ask(engine, model, "a")
    assert {first.result(WAIT_S), second.result(WAIT_S)} == {"a", "b"}
    assert slots(model) == ["b", "a"]
    assert (timings.batch_size, timings.batch_rows, timings.waiting) == (2, 2, 0)
    assert timings.queue_ns > MS


def test_the_engine_goes_on_where_the_other_does_not_come(engine: Engine) -> None:
    model = FakeModel()
    come_and_go(engine, model)
    assert ask(engine, model, "a").result(WAIT_S) == "a"
    assert slots(model) == ["a"]


def test_a_session_that_has_ended_is_not_waited_for(engine: Engine) -> None:
    model = FakeModel()
    come_and_go(engine, model)
    assert not is_alone(engine, "a")
    leave(engine, "b")
    assert is_alone(engine, "a")  # it does not wait for itself, although it was away a moment ago
    leave(engine, "a")
    assert is_alone(engine, "b")


def test_a_session_with_several_slots_is_one(engine: Engine) -> None:
    """A cascade session that came back through one model is not waited for at another."""
    model = FakeModel()
    for slots_in_turn in ("ab", "ba", "ab", "ba"):
        asked = cascade(engine, model, slots_in_turn)
        assert not engine.submit(asked, session_slot=cast(Slot, "ab")).result(WAIT_S)
        time.sleep(AWAY_S)
    engine.submit(cascade(engine, model, "ab"), session_slot=cast(Slot, "ab")).result(WAIT_S)
    assert is_alone(engine, "ab")
    leave(engine, "ab")


def cascade(engine: Engine, model: FakeModel, slots_in_turn: str) -> Task[bool]:
    """Whether any session could have been waited for at one of its forwards."""
    away = False
    for slot in slots_in_turn:
        yield Forward(cast(LanguageModel, model), cast(Slot, slot), [0])
        away |= engine._gathering.has_absent
    return away


def is_alone(engine: Engine, slot: str) -> bool:
    def asking() -> Task[bool]:
        yield from ()
        return engine.is_alone

    return engine.submit(asking(), session_slot=cast(Slot, slot)).result(WAIT_S)


def leave(engine: Engine, slot: str) -> None:
    engine.call(functools.partial(engine.session_ended, cast(Slot, slot))).result(WAIT_S)


def test_a_forward_says_how_many_wait_behind_it() -> None:
    engine, model, other = Engine(), FakeModel(), FakeModel()
    gate = Gate(engine)
    first, behind = ServiceTimings(), ServiceTimings()
    futures = [ask(engine, model, "a", first), ask(engine, other, "b", behind)]
    engine.call(lambda: None)  # belongs to no session
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    engine.stop()
    assert (first.batch_size, first.batch_rows, first.waiting) == (1, 1, 1)
    assert (behind.batch_size, behind.batch_rows, behind.waiting) == (1, 1, 0)


def test_whoever_was_there_at_the_start_is_nobody_to_wait_for() -> None:
    """A warm-up's sessions never end."""
    gathering = Gathering(lambda: line(1.0))
    gathering.record_request("warm-up", 1, now=0)
    gathering.record_answer("warm-up", now=1)
    assert gathering.has_absent
    gathering.forget()
    assert not gathering.has_absent
