"""The thread of the synchronous client, re-entered by a caller that is just entering it."""

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

HANGS_S = 20  # anything that takes this long hangs for good


class EndlessStream(AsyncStream):
    """Yields the same piece again and again."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    async def read(self) -> Any:
        return "piece"

    def cancel(self) -> None:
        self.cancelled.set()


class CyclicHolder:
    """An iterator in a reference cycle, which only the garbage collector ends."""

    def __init__(self, held: Iterator[Any]) -> None:
        self.held, self.myself = held, self


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Disables all garbage collections except those of the test."""
    gc.disable()
    yield
    gc.enable()


def finishes_in_time(work: Callable[[], Any]) -> bool:
    """Whether the work ends in time; if it hangs, its daemon thread is abandoned."""
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(HANGS_S)
    return not worker.is_alive()


def test_stream_collected_during_hand_over_does_not_deadlock(
    no_collections: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection may start at any allocation, and then ends the stream in that very thread."""
    thread, stream = LoopThread(), EndlessStream()
    iterator = iter(Stream(stream, thread))
    next(iterator)
    holder = CyclicHolder(iterator)
    del iterator, holder
    original = asyncio.run_coroutine_threadsafe

    def collecting(*work: Any) -> Any:
        gc.collect()
        return original(*work)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", collecting)
    assert finishes_in_time(lambda: thread.run(asyncio.sleep(0)))
    assert stream.cancelled.wait(HANGS_S)
    thread.stop()
