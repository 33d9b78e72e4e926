"""Work on large requests and answers, which would hold up other requests on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel

Result = TypeVar("Result")

VALUE_CHARACTERS = 32  # what any value counts, besides its text
MAX_INLINE_ENTRIES = 1 << 12  # entries of an answer that are written on the event loop


async def write_entries(write: Callable[[], Result], entries: int) -> Result:
    """What `write` returns, which writes so many entries: in a thread if there are many."""
    return write() if entries <= MAX_INLINE_ENTRIES else await asyncio.to_thread(write)


def is_large(max_characters: int, *values: Any) -> bool:
    """Whether these count more than so many letters. Looks at no more of them than it has to."""
    waiting = [*values]
    while waiting and max_characters >= 0:
        value = waiting.pop()
        if value is None:
            continue
        max_characters -= VALUE_CHARACTERS
        if isinstance(value, str):
            max_characters -= len(value)
        elif isinstance(value, BaseModel):
            waiting += vars(value).values()
        elif isinstance(value, dict):
            waiting += value.keys()
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
    return max_characters < 0
