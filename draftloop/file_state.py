"""What tells that a file which is read again and again has another content by now."""

from __future__ import annotations

from pathlib import Path

# When it was written, which file it is, and how long: that may differ within one tick of the clock.
FileState = tuple[int, int, int]


def state_of(file: Path) -> FileState | None:
    """None while it cannot be looked at, as between two steps of who replaces it."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
