"""What an event loop awaits and the engine's thread ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event

import pytest

from draftloop.errors import Unavailable
from draftloop.runtime.awaited import Awaited
from draftloop.runtime.engine import Engine
from draftloop.runtime.forward import Task

WAIT_S = 20.0


def running(function: Callable[[], str]) -> Task[str]:
    yield from ()
    return function()


def failing() -> str:
    raise KeyError("inside")


async def test_the_loop_gets_what_the_task_returns_or_raises(engine: Engine) -> None:
    assert await engine.awaited(running(lambda: "done")) == "done"
    with pytest.raises(KeyError, match="inside"):
        await engine.awaited(running(failing))


async def test_a_task_that_nobody_awaits_any_more_is_not_begun(engine: Engine) -> None:
    begun, entered, opened = Event(), Event(), Event()

    def hold() -> None:
        entered.set()
        assert opened.wait(WAIT_S)

    def begin() -> str:
        begun.set()
        return ""

    async def wait() -> None:
        await engine.awaited(running(begin))

    engine.call(hold)
    assert await asyncio.to_thread(entered.wait, WAIT_S)
    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    opened.set()
    assert await engine.awaited(running(lambda: "next")) == "next"
    assert not begun.is_set()


async def test_an_engine_that_stops_says_so(engine: Engine) -> None:
    engine.stop()
    with pytest.raises(Unavailable, match="the engine is stopping"):
        await engine.awaited(running(lambda: "never"))


def test_the_end_of_a_loop_is_no_error_of_the_other_thread() -> None:
    async def make() -> Awaited[str]:
        return Awaited()

    left = asyncio.run(make())
    left.set_result("to nobody")
