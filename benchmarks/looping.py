"""Detects that an output repeats itself, which favours methods that copy."""

from __future__ import annotations

from collections.abc import Sequence

TAIL = 32
MAX_PERIOD = 16
DEFINITION = f"the last {TAIL} tokens repeat with a period of at most {MAX_PERIOD}"


def is_looping(token_ids: Sequence[int]) -> bool:
    """Whether an output loops, see DEFINITION; an output shorter than the tail does not."""
    tail = list(token_ids[-TAIL:])
    return len(tail) == TAIL and any(
        tail[period:] == tail[:-period] for period in range(1, MAX_PERIOD + 1)
    )
