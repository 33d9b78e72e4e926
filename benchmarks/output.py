"""Where results go: seen to before anything is measured, since measuring takes hours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from draftloop.errors import DraftloopError, StartupFailure

INTERRUPTED = 130  # what shells report after Ctrl-C


def beside(out: str | Path, *suffixes: str) -> list[Path]:
    """The files of the results `out`, whose name may hold dots: suffixes replace nothing."""
    return [Path(f"{out}{suffix}") for suffix in suffixes]


def prepare(*files: Path) -> None:
    """Makes their folders and tries whether each can be written; what is there stays as it is.

    Raises StartupFailure where one cannot.
    """
    for file in files:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            known = file.exists()
            file.open("ab").close()
            if not known:
                file.unlink()
        except OSError as error:
            raise StartupFailure(
                f"out: {file} cannot be written: {error.strerror}: {error.filename}"
            ) from None


def progress_on(console: Console) -> Progress:
    """A bar with the time that has passed and, as the field `doing`, what is under way."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[doing]}"),
        console=console,
    )


def say_error(console: Console, error: Exception) -> None:
    """In a line."""
    console.print(f"[red]{escape(str(error))}[/]", highlight=False)


def as_command(main: Callable[[], int | None]) -> NoReturn:
    """Ends the process with the status of `main`; of an error it says one line."""
    try:
        sys.exit(main())
    except (DraftloopError, OSError) as error:
        sys.exit(str(error))
