"""Roles that start together on one machine: they import side by side, and measure one by one."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

POLL_S = 0.02


@contextlib.contextmanager
def importing(start_lock: Path | None) -> Iterator[None]:
    """While it lasts, no role that shares the lock file takes its turn."""
    if start_lock is None:
        yield
        return
    with start_lock.open("ab") as file:  # closing the file unlocks it, so does the process's end
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextlib.asynccontextmanager
async def turn(start_lock: Path | None) -> AsyncIterator[None]:
    """Waits until nobody imports or has the turn; then it is this role's.

    A model service measures what a forward costs: another process's work on the same cores would
    be measured with it.
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
