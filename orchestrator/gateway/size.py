"""Whether what a client sent is so large that processing it would hold up other requests."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

VALUE_LETTERS = 32  # what any value counts, besides its text


def is_large(letters: int, *said: Any) -> bool:
    """Whether these count more than so many letters. Looks at no more of them than it has to."""
    waiting = [*said]
    while waiting and letters >= 0:
        value = waiting.pop()
        if value is None:
            continue
        letters -= VALUE_LETTERS
        if isinstance(value, str):
            letters -= len(value)
        elif isinstance(value, BaseModel):
            waiting += vars(value).values()
        elif isinstance(value, dict):
            waiting += value.keys()
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
    return letters < 0
