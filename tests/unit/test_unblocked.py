"""`unblocked`: a producer runs ahead of its consumer and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator

import pytest

from orchestrator.unblocked import unblocked


class Source:
    """Yields 0, 1, 2 … and records what happens to it."""

    def __init__(self, count: int, *, error: Exception | None = None, endless: bool = False):
        self.count = count
        self.error = error
        self.endless = endless
        self.produced: list[int] = []
        self.cleaned_up = False

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for item in range(self.count):
                await asyncio.sleep(0)
                self.produced.append(item)
                yield item
            if self.error is not None:
                raise self.error
            if self.endless:
                await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)  # as closing a stream takes a moment
            self.cleaned_up = True


async def test_items_arrive_in_order() -> None:
    source = Source(5)
    assert [item async for item in unblocked(source.items())] == [0, 1, 2, 3, 4]
    assert source.cleaned_up


async def test_source_does_not_wait_for_its_consumer() -> None:
    source = Source(5, endless=True)
    async with contextlib.aclosing(unblocked(source.items())) as items:
        assert await anext(items) == 0
        await asyncio.sleep(0.05)  # the consumer is busy, as with a client that reads slowly
        assert source.produced == [0, 1, 2, 3, 4]


async def test_error_is_raised_after_the_preceding_items() -> None:
    source = Source(3, error=ValueError("on purpose"))
    received: list[int] = []
    with pytest.raises(ValueError, match="on purpose"):
        async for item in unblocked(source.items()):
            received.append(item)
            await asyncio.sleep(0.01)  # the error is raised long before the last item is taken
    assert received == [0, 1, 2]


async def test_closing_waits_for_the_source_to_clean_up() -> None:
    source = Source(2, endless=True)
    items = unblocked(source.items())
    assert await anext(items) == 0
    assert not source.cleaned_up
    await items.aclose()
    assert source.cleaned_up


async def test_cancelling_the_consumer_waits_for_the_source_to_clean_up() -> None:
    source = Source(1, endless=True)

    async def consume() -> None:
        async with contextlib.aclosing(unblocked(source.items())) as items:
            async for _ in items:
                pass

    consumer = asyncio.create_task(consume())
    await asyncio.sleep(0.02)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert source.cleaned_up


async def test_source_does_not_start_before_the_first_request() -> None:
    source = Source(2)
    items = unblocked(source.items())
    await asyncio.sleep(0.02)
    assert not source.produced
    await items.aclose()


async def test_error_after_the_consumer_has_left_is_dropped() -> None:
    """A source that gRPC cancels at a deadline may end with its own error, which is dropped."""

    async def source() -> AsyncGenerator[int, None]:
        yield 0
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("on purpose") from None

    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    items = unblocked(source())
    assert await anext(items) == 0
    await items.aclose()
    del items
    gc.collect()
    assert not complaints
