"""A producer that works on while its consumer is busy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TypeVar

Item = TypeVar("Item")


async def ahead(source: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    """What `source` yields and raises, but `source` never waits for the consumer.

    Closing this closes `source` and waits until it has cleaned up. What was produced and not yet
    taken is kept: use it where `source` yields a bounded number of small things.
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
            task.exception()  # the consumer has left: or asyncio complains that nobody looked
