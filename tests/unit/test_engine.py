"""The engine: joint forwards, cancellation, failures that stay where they belong."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from draftloop.errors import InvalidInput, Unavailable
from draftloop.runtime import step
from draftloop.runtime.awaited import Awaited
from draftloop.runtime.engine import Engine, Job, in_turn
from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.kv_cache import Slot
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.ruin import MOST_IN_A_ROW, OUT_OF_MEMORY, Ruin
from draftloop.runtime.step import ROUND_TOKENS, StepSize
from draftloop.tree import ServiceTimings
from tests.support.gate import Gate
from tests.support.toy_model import FakeModel

WAIT_S = 20.0


@pytest.fixture
def engine() -> Iterator[Engine]:
    running = Engine()
    yield running
    running.stop()


def wish(model: FakeModel, tokens: int = 1, name: Any = None) -> Forward:
    return Forward(cast(LanguageModel, model), cast(Slot, name), [0] * tokens)


def steps(model: FakeModel, count: int, name: str = "", tokens: int = 1) -> Task[str]:
    for _ in range(count):
        logits: Tensor = yield wish(model, tokens, name)
        assert logits.shape == (tokens, 1)
    return name


def names(model: FakeModel) -> list[list[object]]:
    return [[forward.slot for forward in batch] for batch in model.batches]


def test_waiting_tasks_share_a_forward(engine: Engine) -> None:
    model, timings = FakeModel(), ServiceTimings()
    gate = Gate(engine)
    futures = [engine.submit(steps(model, 2, name), timings) for name in "abc"]
    gate.open()
    assert [future.result(WAIT_S) for future in futures] == ["a", "b", "c"]
    assert [len(batch) for batch in model.batches] == [3, 3]
    assert timings.batch_size == 3
    assert timings.forwards == 6  # two for each of the three that booked on it
    assert timings.forward_ns > 0 < timings.queue_ns


def test_what_prompts_take_of_a_round_is_told(engine: Engine) -> None:
    """Of its forward and of what it waited for before, but of others' prompts alone."""
    model, prompt, beside, behind = FakeModel(), *(ServiceTimings() for _ in range(3))
    gate = Gate(engine)
    tokens, rows = 3 * ROUND_TOKENS, 3 * ROUND_TOKENS + 1
    first = engine.submit(steps(model, 1, "a", tokens=tokens), prompt)
    second = engine.submit(followed(model, engine, behind), beside)
    gate.open()
    first.result(WAIT_S)
    second.result(WAIT_S).result(WAIT_S)
    for timings in (prompt, beside):
        assert (timings.batch_size, timings.prompts) == (2, 1)
        assert (timings.batch_rows, timings.prompt_rows) == (rows, tokens)
    assert prompt.prompts_ns == 0
    assert 0 < beside.prompts_ns <= beside.forward_ns
    assert (behind.batch_rows, behind.prompt_rows, behind.prompts) == (1, 0, 0)
    assert 0 < behind.prompts_ns <= behind.queue_ns
    assert all(timings.is_shared for timings in (prompt, beside, behind))


def followed(model: FakeModel, engine: Engine, timings: ServiceTimings) -> Task[Future[str]]:
    """Somebody asks behind its forward."""
    yield wish(model)
    return engine.submit(steps(model, 1), timings)


def test_models_take_turns(engine: Engine) -> None:
    one, other = FakeModel(), FakeModel()
    gate = Gate(engine)
    futures = [engine.submit(steps(model, 3)) for model in (one, other, one)]
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    assert [len(batch) for batch in one.batches] == [2] * 3
    assert [len(batch) for batch in other.batches] == [1] * 3


def test_a_full_step_starves_nobody(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MAX_STEP_TOKENS", 8)
    model = FakeModel()
    gate = Gate(engine)
    futures = [engine.submit(steps(model, 2, name, tokens=4)) for name in "abc"]
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    assert names(model) == [["a", "b"], ["c", "a"], ["b", "c"]]


def test_rounds_go_on_while_prompts_are_run_one_after_the_other(engine: Engine) -> None:
    """Taking turns, all of them would have their first tokens when the last one has."""
    model = FakeModel()
    model.step_size = StepSize(step.LONGEST_S * 1e9 / 64)
    gate = Gate(engine)
    futures = [engine.submit(steps(model, 2, name, tokens=64)) for name in "ab"]
    futures += [engine.submit(steps(model, 4, "round"))]
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    assert names(model) == [["a", "round"], ["a", "round"], ["b", "round"], ["b", "round"]]
    assert engine.forwards == 4


def waiting(name: str, seconds: float, left: int) -> Job:
    """A prompt of which so many tokens are left."""
    model, submitted_ns = FakeModel(), time.perf_counter_ns() - round(seconds * 1e9)
    job = Job(steps(model, 1), Future(), ServiceTimings(), submitted_ns)
    job.wish = dataclasses.replace(wish(model, 64, name), left=left)
    return job


@pytest.mark.parametrize(("jobs", "order"), [
    ([("first", 2.0, 900), ("second", 1.9, 900)], ["first", "second"]),
    ([("second", 1.9, 900), ("first", 2.0, 400)], ["first", "second"]),  # goes on where it is
    ([("long", 2.0, 9000), ("short", 1.0, 90)], ["short", "long"]),
    ([("short", 0.1, 90), ("long", 60.0, 9000)], ["long", "short"]),  # it has waited enough
])  # fmt: skip
def test_whose_prompt_is_next(jobs: list[tuple[str, float, int]], order: list[str]) -> None:
    turns = list(in_turn([waiting(*job) for job in jobs]))
    named: list[Any] = [job.wish.slot for job in turns if job.wish is not None]
    assert named == order


def test_rounds_keep_their_places_between_prompts() -> None:
    jobs = [waiting("long", 1.0, 900), waiting("round", 1.0, 0), waiting("short", 1.0, 90)]
    jobs[1].wish = wish(FakeModel(), 1, "round")
    assert list(in_turn(jobs)) == [jobs[2], jobs[1], jobs[0]]


def test_a_wish_beyond_the_step_runs_alone(engine: Engine) -> None:
    model = FakeModel()
    tokens = step.MAX_STEP_TOKENS + 1
    assert engine.submit(steps(model, 1, "long", tokens)).result(WAIT_S) == "long"


def test_a_cancelled_task_runs_no_further_forward(engine: Engine) -> None:
    model, closed = FakeModel(), threading.Event()

    def endless() -> Task[None]:
        try:
            while True:
                yield wish(model)
        finally:
            closed.set()

    future = engine.submit(endless())
    while not model.batches:
        pass
    assert future.cancel()
    assert closed.wait(WAIT_S)
    with pytest.raises(CancelledError):
        future.result(WAIT_S)
    assert engine.submit(steps(model, 1, "next")).result(WAIT_S) == "next"


def test_a_failed_forward_fails_its_own_sessions_only(engine: Engine) -> None:
    bad, good = FakeModel(), FakeModel()
    bad.failure = RuntimeError("out of memory")
    gate = Gate(engine)
    failing = [engine.submit(steps(bad, 1)) for _ in range(2)]
    living = engine.submit(steps(good, 3, "alive"))
    gate.open()
    for future in failing:
        with pytest.raises(RuntimeError, match="out of memory"):
            future.result(WAIT_S)
    assert living.result(WAIT_S) == "alive"
    assert engine.submit(steps(good, 1, "later")).result(WAIT_S) == "later"


def test_a_failing_task_and_a_failing_clean_up_leave_the_engine_alive(engine: Engine) -> None:
    model = FakeModel()

    def broken() -> Task[None]:
        yield wish(model)
        raise ValueError("mine")

    def messy() -> Task[None]:
        try:
            yield wish(model)
        finally:
            raise ValueError("while closing")

    with pytest.raises(ValueError, match="mine"):
        engine.submit(broken()).result(WAIT_S)
    model.failure = RuntimeError("forward")
    with pytest.raises(RuntimeError, match="forward"):
        engine.submit(messy()).result(WAIT_S)
    assert engine.call(lambda: "alive").result(WAIT_S) == "alive"


def test_call_runs_on_the_engines_thread(engine: Engine) -> None:
    first = engine.call(threading.get_ident).result(WAIT_S)
    assert first == engine.call(threading.get_ident).result(WAIT_S) != threading.get_ident()

    def fail() -> None:
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        engine.call(fail).result(WAIT_S)


def test_stopping_fails_what_waits_and_what_comes_later() -> None:
    engine, model = Engine(), FakeModel()

    def endless() -> Task[None]:
        while True:
            yield wish(model)

    running = engine.submit(endless())
    engine.stop()
    for future in (running, engine.submit(endless())):
        with pytest.raises(Unavailable, match="the engine is stopping"):
            future.result(WAIT_S)


async def test_a_loop_gets_what_the_task_returns_or_raises(engine: Engine) -> None:
    def failing() -> Task[str]:
        yield from ()
        raise KeyError("inside")

    assert await engine.awaited(steps(FakeModel(), 1, "done")) == "done"
    with pytest.raises(KeyError, match="inside"):
        await engine.awaited(failing())


async def test_a_task_that_no_loop_awaits_any_more_is_not_begun(engine: Engine) -> None:
    begun = threading.Event()

    def begin() -> Task[None]:
        begun.set()
        yield from ()

    async def wait() -> None:
        await engine.awaited(begin())

    gate = Gate(engine)
    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.open()
    assert await engine.awaited(steps(FakeModel(), 0, "next")) == "next"
    assert not begun.is_set()


async def test_an_error_that_nobody_waits_for_any_more_is_not_reported(engine: Engine) -> None:
    def failing() -> Task[None]:
        yield from ()
        raise KeyError("inside")

    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: reported.append(said))
    lost, given_up = engine.awaited(failing()), engine.awaited(failing())
    assert await engine.awaited(steps(FakeModel(), 0, "next")) == "next"
    given_up.cancel()
    del given_up
    gc.collect()
    assert not reported
    del lost
    gc.collect()
    assert len(reported) == 1


async def test_an_engine_that_stops_says_so_to_a_loop(engine: Engine) -> None:
    engine.stop()
    with pytest.raises(Unavailable, match="the engine is stopping"):
        await engine.awaited(steps(FakeModel(), 0))


def test_the_end_of_a_loop_is_no_error_of_the_other_thread() -> None:
    async def make() -> Awaited[str]:
        return Awaited()

    left = asyncio.run(make())
    left.set_result("to nobody")


class Broken:
    """What becomes of an engine: its last error, and how many failed in a row."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, int]] = []

    def __call__(self, error: BaseException, in_a_row: int) -> None:
        self.ends.append((str(error), in_a_row))


@pytest.fixture
def broken() -> Broken:
    return Broken()


@pytest.fixture
def mortal(broken: Broken) -> Iterator[Engine]:
    """Tells when it should end."""
    running = Engine(ruin=Ruin(broken))
    yield running
    running.stop()


def fails(engine: Engine, model: FakeModel, failure: Exception) -> None:
    model.failure = failure
    with pytest.raises(type(failure)):
        engine.submit(steps(model, 1)).result(WAIT_S)
    model.failure = None


def test_forwards_that_go_on_to_fail_end_the_engine(mortal: Engine, broken: Broken) -> None:
    """Whoever's they are; one that goes well in between means that the others were at fault."""
    model = FakeModel()
    for _ in range(MOST_IN_A_ROW - 1):
        fails(mortal, model, RuntimeError("no"))
    mortal.submit(steps(model, 1)).result(WAIT_S)
    for number in range(MOST_IN_A_ROW):
        mortal.call(lambda: None).result(WAIT_S)
        assert not broken.ends, number
        fails(mortal, model, RuntimeError("never again"))
    mortal.call(lambda: None).result(WAIT_S)
    assert broken.ends == [("never again", MOST_IN_A_ROW)]


def test_requests_that_nobody_could_run_end_no_engine() -> None:
    """A forward of no request tells them from a service that can run nothing any more."""
    broken, tried = Broken(), FakeModel()

    def tries() -> None:
        tried.forward([wish(tried)])

    ruin = Ruin(broken, tries)
    for _ in range(3 * MOST_IN_A_ROW):
        ruin.failed(RuntimeError("this one only"))
    assert len(tried.batches) == 3 and not broken.ends
    tried.failure = torch.OutOfMemoryError("full")
    for _ in range(MOST_IN_A_ROW):
        ruin.failed(RuntimeError("this one only"))
    assert not broken.ends
    tried.failure = RuntimeError("any")
    ruin.failed(RuntimeError("everybody's"))
    assert broken.ends == [("everybody's", MOST_IN_A_ROW + 1)]


def no_memory_on_cpu() -> Exception:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    return caught.value


@pytest.mark.parametrize(
    "failure",
    [
        InvalidInput("x", "must be y", 1), torch.OutOfMemoryError("full"), MemoryError(),
        no_memory_on_cpu(),
    ],
)  # fmt: skip
def test_mistakes_and_lack_of_memory_end_no_engine(
    mortal: Engine, broken: Broken, failure: Exception
) -> None:
    model = FakeModel()
    for _ in range(2 * MOST_IN_A_ROW):
        fails(mortal, model, failure)
    fails(mortal, model, RuntimeError("no"))
    mortal.call(lambda: None).result(WAIT_S)
    assert not broken.ends


def test_a_ruined_device_ends_it_at_once(mortal: Engine, broken: Broken) -> None:
    """Found in a forward, or where tokens are chosen."""
    fails(mortal, FakeModel(), torch.AcceleratorError("an illegal memory access"))

    def chooses() -> None:
        raise torch.AcceleratorError("a device-side assert")

    with pytest.raises(torch.AcceleratorError):
        mortal.call(chooses).result(WAIT_S)
    mortal.call(lambda: None).result(WAIT_S)
    assert [in_a_row for _, in_a_row in broken.ends] == [1, 2]
    full: Any = torch.AcceleratorError("out of memory")
    full.error_code = OUT_OF_MEMORY
    fails(mortal, FakeModel(), full)
    mortal.call(lambda: None).result(WAIT_S)
    assert len(broken.ends) == 2


def renewing(model: FakeModel, renewed: Callable[[], Forward]) -> Task[str]:
    yield dataclasses.replace(wish(model), renewed=renewed)
    return "done"


def test_a_device_that_fails_at_a_copy_fails_one_session(mortal: Engine, broken: Broken) -> None:
    """What others have computed is copied on the engine's thread, between two forwards."""

    def failing() -> Forward:
        raise torch.AcceleratorError("an illegal memory access")

    model = FakeModel()
    gate = Gate(mortal)
    beside, failed = mortal.submit(steps(model, 1)), mortal.submit(renewing(model, failing))
    gate.open()
    with pytest.raises(torch.AcceleratorError, match="an illegal memory access"):
        failed.result(WAIT_S)
    beside.result(WAIT_S)
    assert [message for message, _ in broken.ends] == ["an illegal memory access"]


class Panic(BaseException):
    """As of a library in Rust."""


def test_a_panic_is_the_failure_of_one_session(mortal: Engine, broken: Broken) -> None:
    def panics() -> Task[None]:
        yield wish(FakeModel())
        raise Panic("index out of bounds")

    def panics_again() -> Task[None]:
        try:
            yield wish(FakeModel())
        finally:
            raise Panic("index out of bounds")

    with pytest.raises(RuntimeError, match="Panic: index out of bounds"):
        mortal.submit(panics()).result(WAIT_S)
    gate = Gate(mortal)
    fails_beside, model = mortal.submit(panics_again()), FakeModel()
    fails_beside.cancel()
    gate.open()
    assert mortal.submit(steps(model, 2, "next")).result(WAIT_S) == "next"
    assert not broken.ends


def test_an_engine_that_cannot_go_on_tells_whoever_waits(broken: Broken) -> None:
    """A fault of the engine's own, and what no forward may raise."""
    engine, model = Engine(ruin=Ruin(broken)), FakeModel()
    model.failure = cast(Exception, Panic("poisoned"))
    gate = Gate(engine)
    other = engine.submit(steps(FakeModel(), 1))
    first = engine.submit(steps(model, 1))
    gate.open()
    with pytest.raises(Unavailable, match="the engine has failed"):
        first.result(WAIT_S)
    other.result(WAIT_S)
    assert broken.ends == [("poisoned", 0)]
    with pytest.raises(Unavailable):
        engine.submit(steps(FakeModel(), 1)).result(WAIT_S)
    engine.stop()
