"""Detects that a file which is read repeatedly has changed."""

from __future__ import annotations

from pathlib import Path

# Time of modification, inode, and size. The last two may differ when a file is written twice within
# one tick of the clock.
FileState = tuple[int, int, int]


def state_of(file: Path) -> FileState | None:
    """The file's state; None while it cannot be read, for instance while it is being replaced."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
