"""Long work in pieces of about a millisecond, so that nobody waits for the whole of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


async def in_pieces(work: Iterable[None], rest_s: float = 0.0) -> None:
    """Does the work piece by piece, and between two of them whatever else the event loop has to do.

    `rest_s`: for so long other threads have Python to themselves then.
    """
    for _ in work:
        await asyncio.sleep(rest_s)


def at_once(work: Iterable[None]) -> None:
    """Does what is left of the work."""
    for _ in work:
        pass
