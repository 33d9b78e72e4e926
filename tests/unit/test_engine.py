"""The engine: shared forward passes, cancellation, and failures that stay with their sessions."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from draftloop.errors import Unavailable
from draftloop.runtime import engine as engine_module
from draftloop.runtime import step
from draftloop.runtime.awaited import Awaited
from draftloop.runtime.engine import Engine
from draftloop.runtime.forward import Task
from draftloop.runtime.job import Job, by_response_ratio
from draftloop.runtime.step import ROUND_TOKENS, StepSize
from draftloop.tree import ServiceTimings
from tests.support.engine_tasks import forward_of, run_forwards
from tests.support.gate import Gate
from tests.support.toy_model import FakeModel

WAIT_S = 20.0


@pytest.fixture
def engine() -> Iterator[Engine]:
    running = Engine()
    yield running
    running.stop()


def batch_slots(model: FakeModel) -> list[list[object]]:
    return [[forward.slot for forward in batch] for batch in model.batches]


def test_waiting_tasks_share_a_forward_pass(engine: Engine) -> None:
    model, timings = FakeModel(), ServiceTimings()
    gate = Gate(engine)
    futures = [engine.submit(run_forwards(model, 2, name), timings) for name in "abc"]
    gate.open()
    assert [future.result(WAIT_S) for future in futures] == ["a", "b", "c"]
    assert [len(batch) for batch in model.batches] == [3, 3]
    assert timings.batch_size == 3
    assert timings.forwards == 6  # two for each of the three that waited for it
    assert timings.forward_ns > 0 < timings.queue_ns


def test_time_spent_on_other_prompts_is_reported(engine: Engine) -> None:
    """The time that others' prompts take of its forward pass and of the wait before it."""
    model, prompt, second_prompt, waiting = FakeModel(), *(ServiceTimings() for _ in range(3))
    gate = Gate(engine)
    tokens, rows = 3 * ROUND_TOKENS, 3 * ROUND_TOKENS + 1
    first = engine.submit(run_forwards(model, 1, "a", tokens=tokens), prompt)
    second = engine.submit(task_submitting_another(model, engine, waiting), second_prompt)
    gate.open()
    first.result(WAIT_S)
    second.result(WAIT_S).result(WAIT_S)
    for timings in (prompt, second_prompt):
        assert (timings.batch_size, timings.prompts) == (2, 1)
        assert (timings.batch_rows, timings.prompt_rows) == (rows, tokens)
    assert prompt.prompts_ns == 0
    assert 0 < second_prompt.prompts_ns <= second_prompt.forward_ns
    assert (waiting.batch_rows, waiting.prompt_rows, waiting.prompts) == (1, 0, 0)
    assert 0 < waiting.prompts_ns <= waiting.queue_ns
    assert all(timings.is_shared for timings in (prompt, second_prompt, waiting))


def task_submitting_another(
    model: FakeModel, engine: Engine, timings: ServiceTimings
) -> Task[Future[str]]:
    """A task that submits another one after its forward pass."""
    yield forward_of(model)
    return engine.submit(run_forwards(model, 1), timings)


def test_models_alternate(engine: Engine) -> None:
    first, second = FakeModel(), FakeModel()
    gate = Gate(engine)
    futures = [engine.submit(run_forwards(model, 3)) for model in (first, second, first)]
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    assert [len(batch) for batch in first.batches] == [2] * 3
    assert [len(batch) for batch in second.batches] == [1] * 3


def test_full_step_starves_no_task(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MAX_STEP_TOKENS", 8)
    model = FakeModel()
    gate = Gate(engine)
    futures = [engine.submit(run_forwards(model, 2, name, tokens=4)) for name in "abc"]
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    assert batch_slots(model) == [["a", "b"], ["c", "a"], ["b", "c"]]


def test_rounds_continue_while_prompts_run_in_sequence(engine: Engine) -> None:
    """If they took turns, all would have their first tokens only when the last prompt is done."""
    model = FakeModel()
    model.step_size = StepSize(step.LONGEST_S * 1e9 / 64)
    gate = Gate(engine)
    futures = [engine.submit(run_forwards(model, 2, name, tokens=64)) for name in "ab"]
    futures += [engine.submit(run_forwards(model, 4, "round"))]
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    assert batch_slots(model) == [["a", "round"], ["a", "round"], ["b", "round"], ["b", "round"]]
    assert engine.forwards == 4


def waiting_job(name: str, seconds: float, tokens_left: int) -> Job:
    """A prompt with `tokens_left` tokens left, which has waited for `seconds`."""
    model, submitted_ns = FakeModel(), time.perf_counter_ns() - round(seconds * 1e9)
    job = Job(run_forwards(model, 1), Future(), ServiceTimings(), submitted_ns)
    job.wish = dataclasses.replace(forward_of(model, 64, name), left=tokens_left)
    return job


@pytest.mark.parametrize(("jobs", "order"), [
    ([("first", 2.0, 900), ("second", 1.9, 900)], ["first", "second"]),
    ([("second", 1.9, 900), ("first", 2.0, 400)], ["first", "second"]),  # it continues where it is
    ([("long", 2.0, 9000), ("short", 1.0, 90)], ["short", "long"]),
    ([("short", 0.1, 90), ("long", 60.0, 9000)], ["long", "short"]),  # it has waited long enough
])  # fmt: skip
def test_prompts_are_ordered_by_wait_per_token(
    jobs: list[tuple[str, float, int]], order: list[str]
) -> None:
    turns = list(by_response_ratio([waiting_job(*job) for job in jobs]))
    named: list[Any] = [job.wish.slot for job in turns if job.wish is not None]
    assert named == order


def test_rounds_keep_their_place_between_prompts() -> None:
    jobs = [
        waiting_job("long", 1.0, 900),
        waiting_job("round", 1.0, 0),
        waiting_job("short", 1.0, 90),
    ]
    jobs[1].wish = forward_of(FakeModel(), 1, "round")
    assert list(by_response_ratio(jobs)) == [jobs[2], jobs[1], jobs[0]]


def test_wish_larger_than_a_step_runs_alone(engine: Engine) -> None:
    model = FakeModel()
    tokens = step.MAX_STEP_TOKENS + 1
    assert engine.submit(run_forwards(model, 1, "long", tokens)).result(WAIT_S) == "long"


def test_cancelled_task_runs_no_further_forward(engine: Engine) -> None:
    model, closed = FakeModel(), threading.Event()

    def endless() -> Task[None]:
        try:
            while True:
                yield forward_of(model)
        finally:
            closed.set()

    future = engine.submit(endless())
    while not model.batches:
        pass
    assert future.cancel()
    assert closed.wait(WAIT_S)
    with pytest.raises(CancelledError):
        future.result(WAIT_S)
    assert engine.submit(run_forwards(model, 1, "next")).result(WAIT_S) == "next"


def test_failed_forward_fails_only_its_own_sessions(engine: Engine) -> None:
    failing_model, working_model = FakeModel(), FakeModel()
    failing_model.failure = RuntimeError("out of memory")
    gate = Gate(engine)
    failing = [engine.submit(run_forwards(failing_model, 1)) for _ in range(2)]
    working = engine.submit(run_forwards(working_model, 3, "alive"))
    gate.open()
    for future in failing:
        with pytest.raises(RuntimeError, match="out of memory"):
            future.result(WAIT_S)
    assert working.result(WAIT_S) == "alive"
    assert engine.submit(run_forwards(working_model, 1, "later")).result(WAIT_S) == "later"


def test_engine_survives_failing_tasks_and_clean_ups(engine: Engine) -> None:
    model = FakeModel()

    def broken() -> Task[None]:
        yield forward_of(model)
        raise ValueError("mine")

    def messy() -> Task[None]:
        try:
            yield forward_of(model)
        finally:
            raise ValueError("while closing")

    with pytest.raises(ValueError, match="mine"):
        engine.submit(broken()).result(WAIT_S)
    model.failure = RuntimeError("forward")
    with pytest.raises(RuntimeError, match="forward"):
        engine.submit(messy()).result(WAIT_S)
    assert engine.call(lambda: "alive").result(WAIT_S) == "alive"


def test_call_runs_on_the_engine_thread(engine: Engine) -> None:
    first = engine.call(threading.get_ident).result(WAIT_S)
    assert first == engine.call(threading.get_ident).result(WAIT_S) != threading.get_ident()

    def fail() -> None:
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        engine.call(fail).result(WAIT_S)


def test_stopping_fails_waiting_and_later_tasks() -> None:
    engine, model = Engine(), FakeModel()

    def endless() -> Task[None]:
        while True:
            yield forward_of(model)

    running = engine.submit(endless())
    engine.stop()
    for future in (running, engine.submit(endless())):
        with pytest.raises(Unavailable, match="the engine is stopping"):
            future.result(WAIT_S)


async def test_awaited_returns_or_raises_the_tasks_outcome(engine: Engine) -> None:
    def failing() -> Task[str]:
        yield from ()
        raise KeyError("inside")

    assert await engine.submit_awaitable(run_forwards(FakeModel(), 1, "done")) == "done"
    with pytest.raises(KeyError, match="inside"):
        await engine.submit_awaitable(failing())


async def test_task_cancelled_before_its_start_is_not_started(engine: Engine) -> None:
    started = threading.Event()

    def begin() -> Task[None]:
        started.set()
        yield from ()

    async def wait() -> None:
        await engine.submit_awaitable(begin())

    gate = Gate(engine)
    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.open()
    assert await engine.submit_awaitable(run_forwards(FakeModel(), 0, "next")) == "next"
    assert not started.is_set()


async def test_error_of_a_cancelled_awaiter_is_not_reported(engine: Engine) -> None:
    def failing() -> Task[None]:
        yield from ()
        raise KeyError("inside")

    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    dropped, cancelled = engine.submit_awaitable(failing()), engine.submit_awaitable(failing())
    assert await engine.submit_awaitable(run_forwards(FakeModel(), 0, "next")) == "next"
    cancelled.cancel()
    del cancelled
    gc.collect()
    assert not reported
    del dropped
    gc.collect()
    assert len(reported) == 1


def test_engine_stops_despite_a_hanging_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nothing could end its process."""
    monkeypatch.setattr(engine_module, "MAX_STOP_S", 0.05)
    engine, released, started = Engine(), threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        released.wait(WAIT_S)

    hanging = engine.call(hang)
    assert started.wait(WAIT_S)
    engine.stop()
    assert not hanging.done()
    released.set()
    hanging.result(WAIT_S)


async def test_stopped_engine_raises_unavailable_to_an_event_loop(engine: Engine) -> None:
    engine.stop()
    with pytest.raises(Unavailable, match="the engine is stopping"):
        await engine.submit_awaitable(run_forwards(FakeModel(), 0))


def test_result_for_a_closed_event_loop_raises_no_error() -> None:
    async def make() -> Awaited[str]:
        return Awaited()

    future = asyncio.run(make())
    future.set_result("to nobody")
