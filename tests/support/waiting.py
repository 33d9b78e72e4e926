"""Waits for the effects of other threads and processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Returns once the condition holds; fails if it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


async def eventually(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Like `until`, but for an event loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.01)
