"""A producer that goes on while its consumer is busy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TypeVar

Item = TypeVar("Item")


async def unblocked(source: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    """Yields and raises what `source` does, but `source` never waits for the consumer.

    Closing this generator closes `source` and waits until it has cleaned up. Items that the
    consumer has not taken are queued without limit, so `source` must yield few and small ones.
    """
    queue: asyncio.Queue[Item | None] = asyncio.Queue()

    async def pump() -> None:
        async with contextlib.aclosing(source):
            async for item in source:
                queue.put_nowait(item)

    task = asyncio.create_task(pump())
    task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (item := await queue.get()) is not None:
            yield item
        await task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # the consumer has left; unretrieved, asyncio would log it
