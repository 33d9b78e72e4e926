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


class Broken:
    """Records each reported end: the error, and how many failed in a row."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, int]] = []

    def __call__(self, error: BaseException, in_a_row: int) -> None:
        self.ends.append((str(error), in_a_row))


@pytest.fixture
def broken() -> Broken:
    return Broken()


@pytest.fixture
def mortal(broken: Broken) -> Iterator[Engine]:
    """An engine that reports when it should end."""
    running = Engine(ruin=Ruin(broken))
    yield running
    running.stop()


def fails(engine: Engine, model: FakeModel, failure: Exception) -> None:
    model.failure = failure
    with pytest.raises(type(failure)):
        engine.submit(run_forwards(model, 1)).result(WAIT_S)
    model.failure = None


def test_forwards_that_go_on_to_fail_end_the_engine(mortal: Engine, broken: Broken) -> None:
    """Failures of any session count; a success in between shows that sessions were at fault."""
    model = FakeModel()
    for _ in range(MAX_CONSECUTIVE_FAILURES - 1):
        fails(mortal, model, RuntimeError("no"))
    mortal.submit(run_forwards(model, 1)).result(WAIT_S)
    for number in range(MAX_CONSECUTIVE_FAILURES):
        mortal.call(lambda: None).result(WAIT_S)
        assert not broken.ends, number
        fails(mortal, model, RuntimeError("never again"))
    mortal.call(lambda: None).result(WAIT_S)
    assert broken.ends == [("never again", MAX_CONSECUTIVE_FAILURES)]


def test_requests_that_nobody_could_run_end_no_engine() -> None:
    """A forward of no request distinguishes bad requests from a service that can run nothing."""
    broken, tried = Broken(), FakeModel()

    def tries() -> None:
        tried.forward([forward_of(tried)])

    ruin = Ruin(broken, tries)
    for _ in range(3 * MAX_CONSECUTIVE_FAILURES):
        ruin.record_failure(RuntimeError("this one only"))
    assert len(tried.batches) == 3 and not broken.ends
    tried.failure = torch.OutOfMemoryError("full")
    for _ in range(MAX_CONSECUTIVE_FAILURES):
        ruin.record_failure(RuntimeError("this one only"))
    assert not broken.ends
    tried.failure = Overloaded("all slots are held")  # held by the one whose forward fails, too
    for _ in range(MAX_CONSECUTIVE_FAILURES):
        ruin.record_failure(RuntimeError("this one only"))
    assert not broken.ends
    tried.failure = RuntimeError("any")
    ruin.record_failure(RuntimeError("everybody's"))
    assert broken.ends == [("everybody's", 2 * MAX_CONSECUTIVE_FAILURES + 1)]


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
    for _ in range(2 * MAX_CONSECUTIVE_FAILURES):
        fails(mortal, model, failure)
    fails(mortal, model, RuntimeError("no"))
    mortal.call(lambda: None).result(WAIT_S)
    assert not broken.ends


def test_a_ruined_device_ends_it_at_once(mortal: Engine, broken: Broken) -> None:
    """A ruined device may be found in a forward pass, or when tokens are chosen."""
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
    yield dataclasses.replace(forward_of(model), renewed=renewed)
    return "done"


def test_a_device_that_fails_at_a_copy_fails_one_session(mortal: Engine, broken: Broken) -> None:
    """Shared prefixes are copied on the engine's thread, between two forward passes."""

    def failing() -> Forward:
        raise torch.AcceleratorError("an illegal memory access")

    model = FakeModel()
    gate = Gate(mortal)
    beside, failed = mortal.submit(run_forwards(model, 1)), mortal.submit(renewing(model, failing))
    gate.open()
    with pytest.raises(torch.AcceleratorError, match="an illegal memory access"):
        failed.result(WAIT_S)
    beside.result(WAIT_S)
    assert [message for message, _ in broken.ends] == ["an illegal memory access"]


class Panic(BaseException):
    """An error like the panics of libraries written in Rust."""


def test_a_panic_is_the_failure_of_one_session(mortal: Engine, broken: Broken) -> None:
    def panics() -> Task[None]:
        yield forward_of(FakeModel())
        raise Panic("index out of bounds")

    def panics_again() -> Task[None]:
        try:
            yield forward_of(FakeModel())
        finally:
            raise Panic("index out of bounds")

    with pytest.raises(RuntimeError, match="Panic: index out of bounds"):
        mortal.submit(panics()).result(WAIT_S)
    gate = Gate(mortal)
    fails_beside, model = mortal.submit(panics_again()), FakeModel()
    fails_beside.cancel()
    gate.open()
    assert mortal.submit(run_forwards(model, 2, "next")).result(WAIT_S) == "next"
    assert not broken.ends


def test_an_engine_that_cannot_go_on_tells_whoever_waits(broken: Broken) -> None:
    """A failure of the engine itself, with an error that no forward pass may raise."""
    engine, model = Engine(ruin=Ruin(broken)), FakeModel()
    model.failure = cast(Exception, Panic("poisoned"))
    gate = Gate(engine)
    other = engine.submit(run_forwards(FakeModel(), 1))
    first = engine.submit(run_forwards(model, 1))
    gate.open()
    with pytest.raises(Unavailable, match="the engine has failed"):
        first.result(WAIT_S)
    other.result(WAIT_S)
    assert broken.ends == [("poisoned", 0)]
    with pytest.raises(Unavailable):
        engine.submit(run_forwards(FakeModel(), 1)).result(WAIT_S)
    engine.stop()
