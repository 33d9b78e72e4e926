"""Roles that start together on one machine import in parallel and measure one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO

from draftloop.errors import StartupFailure

POLL_S = 0.02


@contextlib.contextmanager
def importing(start_lock: Path | None) -> Iterator[None]:
    """Within the context, no role that shares the lock file gets its turn.

    Raises StartupFailure if the file cannot be opened.
    """
    if start_lock is None:
        yield
        return
    with _opened(start_lock) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextlib.asynccontextmanager
async def turn(start_lock: Path | None) -> AsyncIterator[None]:
    """Waits until no role imports or has the turn; then it is this role's turn.

    A model service measures the time of forwards; work of another process on the same cores would
    distort the measurement. Raises StartupFailure if the file cannot be opened.
    """
    if start_lock is None:
        yield
        return
    with _opened(start_lock) as file:
        while not _locked(file.fileno()):
            await asyncio.sleep(POLL_S)  # a blocking wait could not be cancelled
        yield


def _opened(start_lock: Path) -> BinaryIO:
    """The lock file. Closing it, or the end of the process, unlocks it."""
    try:
        return start_lock.open("ab")
    except OSError as error:
        raise StartupFailure(
            f"start_lock: {start_lock} cannot be opened: {error.strerror}. "
            "Its folder must exist and be writable"
        ) from None


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
