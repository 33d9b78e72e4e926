"""What happens to an engine whose forward passes, copies or grammars fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch

from draftloop.errors import InvalidInput, Overloaded, Unavailable
from draftloop.runtime.engine import Engine
from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.ruin import MAX_CONSECUTIVE_FAILURES, OUT_OF_MEMORY, Ruin
from tests.support.engine_tasks import forward_of, run_forwards
from tests.support.gate import Gate
from tests.support.toy_model import FakeModel

WAIT_S = 20.0


class EndRecorder:
    """Records each reported end: the error, and how many failed in a row."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, int]] = []

    def __call__(self, error: BaseException, consecutive: int) -> None:
        self.ends.append((str(error), consecutive))


@pytest.fixture
def end_recorder() -> EndRecorder:
    return EndRecorder()


@pytest.fixture
def ending_engine(end_recorder: EndRecorder) -> Iterator[Engine]:
    """An engine that reports when it should end."""
    running = Engine(ruin=Ruin(end_recorder))
    yield running
    running.stop()


def fail_forward(engine: Engine, model: FakeModel, failure: Exception) -> None:
    model.failure = failure
    with pytest.raises(type(failure)):
        engine.submit(run_forwards(model, 1)).result(WAIT_S)
    model.failure = None


def test_consecutive_failed_forwards_end_the_engine(
    ending_engine: Engine, end_recorder: EndRecorder
) -> None:
    """Failures of any session count; a success in between shows that sessions were at fault."""
    model = FakeModel()
    for _ in range(MAX_CONSECUTIVE_FAILURES - 1):
        fail_forward(ending_engine, model, RuntimeError("no"))
    ending_engine.submit(run_forwards(model, 1)).result(WAIT_S)
    for number in range(MAX_CONSECUTIVE_FAILURES):
        ending_engine.call(lambda: None).result(WAIT_S)
        assert not end_recorder.ends, number
        fail_forward(ending_engine, model, RuntimeError("never again"))
    ending_engine.call(lambda: None).result(WAIT_S)
    assert end_recorder.ends == [("never again", MAX_CONSECUTIVE_FAILURES)]


def test_unservable_requests_do_not_end_the_engine() -> None:
    """A forward of no request distinguishes bad requests from a service that can run nothing."""
    end_recorder, model = EndRecorder(), FakeModel()

    def run_trial_forward() -> None:
        model.forward([forward_of(model)])

    ruin = Ruin(end_recorder, run_trial_forward)
    for _ in range(3 * MAX_CONSECUTIVE_FAILURES):
        ruin.record_failure(RuntimeError("this one only"))
    assert len(model.batches) == 3 and not end_recorder.ends
    model.failure = torch.OutOfMemoryError("full")
    for _ in range(MAX_CONSECUTIVE_FAILURES):
        ruin.record_failure(RuntimeError("this one only"))
    assert not end_recorder.ends
    model.failure = Overloaded("all slots are held")  # held by the one whose forward fails, too
    for _ in range(MAX_CONSECUTIVE_FAILURES):
        ruin.record_failure(RuntimeError("this one only"))
    assert not end_recorder.ends
    model.failure = RuntimeError("any")
    ruin.record_failure(RuntimeError("everybody's"))
    assert end_recorder.ends == [("everybody's", 2 * MAX_CONSECUTIVE_FAILURES + 1)]


def cpu_out_of_memory_error() -> Exception:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    return caught.value


@pytest.mark.parametrize(
    "failure",
    [
        InvalidInput("x", "must be y", 1), torch.OutOfMemoryError("full"), MemoryError(),
        cpu_out_of_memory_error(),
    ],
)  # fmt: skip
def test_invalid_input_and_out_of_memory_do_not_end_the_engine(
    ending_engine: Engine, end_recorder: EndRecorder, failure: Exception
) -> None:
    model = FakeModel()
    for _ in range(2 * MAX_CONSECUTIVE_FAILURES):
        fail_forward(ending_engine, model, failure)
    fail_forward(ending_engine, model, RuntimeError("no"))
    ending_engine.call(lambda: None).result(WAIT_S)
    assert not end_recorder.ends


def test_device_error_ends_the_engine_at_once(
    ending_engine: Engine, end_recorder: EndRecorder
) -> None:
    """A ruined device may be found in a forward pass, or when tokens are chosen."""
    fail_forward(ending_engine, FakeModel(), torch.AcceleratorError("an illegal memory access"))

    def chooses() -> None:
        raise torch.AcceleratorError("a device-side assert")

    with pytest.raises(torch.AcceleratorError):
        ending_engine.call(chooses).result(WAIT_S)
    ending_engine.call(lambda: None).result(WAIT_S)
    assert [consecutive for _, consecutive in end_recorder.ends] == [1, 2]
    full: Any = torch.AcceleratorError("out of memory")
    full.error_code = OUT_OF_MEMORY
    fail_forward(ending_engine, FakeModel(), full)
    ending_engine.call(lambda: None).result(WAIT_S)
    assert len(end_recorder.ends) == 2


def renewing_task(model: FakeModel, renewed: Callable[[], Forward]) -> Task[str]:
    yield dataclasses.replace(forward_of(model), renewed=renewed)
    return "done"


def test_device_error_while_copying_fails_one_session(
    ending_engine: Engine, end_recorder: EndRecorder
) -> None:
    """Shared prefixes are copied on the engine's thread, between two forward passes."""

    def failing() -> Forward:
        raise torch.AcceleratorError("an illegal memory access")

    model = FakeModel()
    gate = Gate(ending_engine)
    unaffected, failed = (
        ending_engine.submit(run_forwards(model, 1)),
        ending_engine.submit(renewing_task(model, failing)),
    )
    gate.open()
    with pytest.raises(torch.AcceleratorError, match="an illegal memory access"):
        failed.result(WAIT_S)
    unaffected.result(WAIT_S)
    assert [message for message, _ in end_recorder.ends] == ["an illegal memory access"]


class Panic(BaseException):
    """An error like the panics of libraries written in Rust."""


def test_panic_fails_only_its_session(ending_engine: Engine, end_recorder: EndRecorder) -> None:
    def panicking_task() -> Task[None]:
        yield forward_of(FakeModel())
        raise Panic("index out of bounds")

    def task_panicking_in_cleanup() -> Task[None]:
        try:
            yield forward_of(FakeModel())
        finally:
            raise Panic("index out of bounds")

    with pytest.raises(RuntimeError, match="Panic: index out of bounds"):
        ending_engine.submit(panicking_task()).result(WAIT_S)
    gate = Gate(ending_engine)
    cancelled, model = ending_engine.submit(task_panicking_in_cleanup()), FakeModel()
    cancelled.cancel()
    gate.open()
    assert ending_engine.submit(run_forwards(model, 2, "next")).result(WAIT_S) == "next"
    assert not end_recorder.ends


def test_failed_engine_raises_unavailable_to_waiting_tasks(end_recorder: EndRecorder) -> None:
    """A failure of the engine itself, with an error that no forward pass may raise."""
    engine, model = Engine(ruin=Ruin(end_recorder)), FakeModel()
    model.failure = cast(Exception, Panic("poisoned"))
    gate = Gate(engine)
    waiting = engine.submit(run_forwards(FakeModel(), 1))
    first = engine.submit(run_forwards(model, 1))
    gate.open()
    with pytest.raises(Unavailable, match="the engine has failed"):
        first.result(WAIT_S)
    waiting.result(WAIT_S)
    assert end_recorder.ends == [("poisoned", 0)]
    with pytest.raises(Unavailable):
        engine.submit(run_forwards(FakeModel(), 1)).result(WAIT_S)
    engine.stop()
