"""What the commands share: the server's address, consoles, one line instead of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from draftloop.client import Client, ClientTls
from draftloop.environment import API_KEY
from draftloop.errors import DraftloopError
from draftloop.rpc.health import CA

FAILED = 2

console = Console(highlight=False)
complaints = Console(stderr=True, highlight=False)

Server = Annotated[str, typer.Option(help="Address of a running orchestrator.")]
ApiKey = Annotated[
    str | None,
    typer.Option(help="Key, where the server asks for one.", envvar=API_KEY),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(help="PEM file with the server's CA; encrypts.", envvar=CA),
]


def client_of(server: str, api_key: str | None, tls_ca: Path | None) -> Client:
    """A client as the command line's options describe it."""
    return Client(server, api_key=api_key, tls=ClientTls(ca=tls_ca) if tls_ca else None)


@contextmanager
def clear_errors() -> Iterator[None]:
    """One line and an exit status instead of a traceback."""
    try:
        yield
    except BrokenPipeError:  # whoever read has had enough, which the command line itself knows
        raise
    except ModuleNotFoundError as error:
        rule = "is not installed; install what the command needs, such as draftloop[orchestrator]"
        complaints.print(f"draftloop: {error.name} {rule}", style="red", markup=False)
        raise typer.Exit(FAILED) from None
    except (DraftloopError, OSError) as error:
        complaints.print(f"draftloop: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        complaints.print("cancelled")
        raise typer.Exit(130) from None
