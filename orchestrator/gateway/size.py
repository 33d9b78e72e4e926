"""Whether what a client sent is so large that processing it would hold up other requests."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

VALUE_CHARACTERS = 32  # what any value counts, besides its text


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
