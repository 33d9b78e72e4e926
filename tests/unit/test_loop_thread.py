"""The synchronous client's thread, entered again by a thread that is just entering it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from draftloop.client.async_stream import AsyncStream
from draftloop.client.loop_thread import LoopThread
from draftloop.client.sync_client import Stream

HANGS_S = 20  # work that takes this long would never end


class Endless(AsyncStream):
    """A stream that returns the same piece again and again."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    async def read(self) -> Any:
        return "piece"

    def cancel(self) -> None:
        self.cancelled.set()


class Holder:
    """An iterator in a reference cycle: only the garbage collector ends it."""

    def __init__(self, held: Iterator[Any]) -> None:
        self.held, self.myself = held, self


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Garbage is collected only when the test asks for it."""
    gc.disable()
    yield
    gc.enable()


def in_time(work: Callable[[], Any]) -> bool:
    """Whether the work ends in time; a thread that hangs is left behind as a daemon."""
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(HANGS_S)
    return not worker.is_alive()


def test_streams_that_are_collected_while_work_is_handed_over(
    no_collections: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection may begin at any allocation, and ends the stream in that thread."""
    thread, stream = LoopThread(), Endless()
    reading = iter(Stream(stream, thread))
    next(reading)
    holder = Holder(reading)
    del reading, holder
    hand_over = asyncio.run_coroutine_threadsafe

    def collecting(*work: Any) -> Any:
        gc.collect()
        return hand_over(*work)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", collecting)
    assert in_time(lambda: thread.run(asyncio.sleep(0)))
    assert stream.cancelled.wait(HANGS_S)
    thread.stop()
