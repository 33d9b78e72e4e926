"""What the commands share: the server's address, consoles, one line instead of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

from draftloop.errors import DraftloopError

FAILED = 2

console = Console(highlight=False)
complaints = Console(stderr=True, highlight=False)

Server = Annotated[str, typer.Option(help="Address of a running orchestrator.")]


@contextmanager
def clear_errors() -> Iterator[None]:
    """One line and an exit status instead of a traceback."""
    try:
        yield
    except (DraftloopError, OSError) as error:
        complaints.print(f"draftloop: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        complaints.print("cancelled")
        raise typer.Exit(130) from None
