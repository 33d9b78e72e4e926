"""Long work in pieces of about a millisecond, so that the event loop stays responsive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


async def run_in_pieces(work: Iterable[None], rest_s: float = 0.0) -> None:
    """Does the work piece by piece, with a turn of the event loop between two pieces.

    `rest_s`: seconds to sleep between pieces, which leaves the interpreter to other threads.
    """
    for _ in work:
        await asyncio.sleep(rest_s)


def run_at_once(work: Iterable[None]) -> None:
    """Does the rest of the work without interruption."""
    for _ in work:
        pass
