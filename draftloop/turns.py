"""Roles that start together on one machine import in parallel and measure one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

POLL_S = 0.02


@contextlib.contextmanager
def importing(start_lock: Path | None) -> Iterator[None]:
    """Within the context, no role that shares the lock file gets its turn."""
    if start_lock is None:
        yield
        return
    with start_lock.open("ab") as file:  # closing the file or ending the process unlocks it
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextlib.asynccontextmanager
async def turn(start_lock: Path | None) -> AsyncIterator[None]:
    """Waits until no role imports or has the turn; then it is this role's turn.

    A model service measures the time of forwards; work of another process on the same cores would
    distort the measurement.
    """
    if start_lock is None:
        yield
        return
    with start_lock.open("ab") as file:
        while not _locked(file.fileno()):
            await asyncio.sleep(POLL_S)  # a blocking wait could not be cancelled
        yield


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
