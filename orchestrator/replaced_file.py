"""Atomic replacement of a file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def replacing(file: Path) -> Iterator[TextIO]:
    """Opens a temporary file that replaces `file` once it is written; only the user can read it."""
    if file.exists() and not file.is_file():  # a pipe, a terminal
        with file.open("w", encoding="utf-8") as target:
            yield target
        return
    file = file.resolve()  # the target of a link is replaced, not the link
    number, name = tempfile.mkstemp(dir=file.parent, prefix=f"{file.name}.")
    try:
        with open(number, "w", encoding="utf-8") as target:
            yield target
        Path(name).replace(file)
    finally:
        Path(name).unlink(missing_ok=True)
