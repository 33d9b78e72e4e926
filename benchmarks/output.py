"""Output files of benchmarks; checked before the measurement, which may take hours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from draftloop.errors import DraftloopError, StartupFailure
from orchestrator.launcher import interruptible

INTERRUPTED = 130  # a shell's exit status for SIGINT


def with_suffixes(out: str | Path, *suffixes: str) -> list[Path]:
    """Files with the name `out` and each suffix, which is appended, since `out` may hold dots."""
    return [Path(f"{out}{suffix}") for suffix in suffixes]


def prepare(*files: Path) -> None:
    """Creates the files' folders and checks that each file can be written; keeps existing content.

    Raises StartupFailure if one cannot be written.
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
    """A progress bar with the elapsed time and, as the field `doing`, the current work."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[doing]}"),
        console=console,
    )


def print_error(console: Console, error: Exception) -> None:
    """Prints an error as one line."""
    console.print(f"[red]{escape(str(error))}[/]", highlight=False)


def exit_status(measure: Callable[[], None], console: Console) -> int:
    """Runs a measurement and returns its exit status; prints an error as one line.

    What was measured until Ctrl-C, SIGTERM or an error can be written afterwards.
    """
    try:
        with interruptible():
            measure()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (DraftloopError, OSError) as error:
        print_error(console, error)
        return 1
    return 0


def run_command(main: Callable[[], int | None]) -> NoReturn:
    """Ends the process with the status of `main`, or with an error's text."""
    try:
        sys.exit(main())
    except (DraftloopError, OSError) as error:
        sys.exit(str(error))
