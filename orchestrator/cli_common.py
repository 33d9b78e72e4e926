"""What the commands share: options of the connection, consoles, errors as one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from draftloop.client import Client, ClientTls
from draftloop.environment import API_KEY
from draftloop.errors import DraftloopError, StartupFailure
from draftloop.rpc.health import CA, CERTIFICATE, KEY, SERVER_NAME

EXIT_FAILED = 2

# Without `emoji=False`, names that contain, for example, `:key:` would be shown with a picture.
console = Console(highlight=False, emoji=False)
error_console = Console(stderr=True, highlight=False, emoji=False)

Server = Annotated[str, typer.Option(help="Address of a running orchestrator.")]
ApiKey = Annotated[
    str | None,
    typer.Option(help="Key, where the server asks for one.", envvar=API_KEY),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(help="PEM file with the server's CA; encrypts.", envvar=CA),
]
TlsCertificate = Annotated[
    Path | None,
    typer.Option(help="PEM file to show a server that asks for one.", envvar=CERTIFICATE),
]
TlsKey = Annotated[
    Path | None, typer.Option(help="PEM file with that certificate's key.", envvar=KEY)
]
TlsServerName = Annotated[
    str,
    typer.Option(
        help="What the server's certificate names, if not the address.", envvar=SERVER_NAME
    ),
]


def make_client(
    server: str,
    api_key: str | None,
    tls_ca: Path | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    tls_server_name: str,
) -> Client:
    """A client as the command line's options describe it; raises what `make_tls` raises."""
    tls = make_tls(tls_ca, tls_certificate, tls_key, tls_server_name)
    return Client(server, api_key=api_key, tls=tls)


def make_tls(
    ca: Path | None, certificate: Path | None, key: Path | None, server_name: str = ""
) -> ClientTls | None:
    """The client's TLS settings; None without encryption.

    Raises StartupFailure if a certificate or key is given without an authority to trust.
    """
    require_encryption(ca, certificate, key)
    if ca is None:
        return None
    return ClientTls(ca=ca, certificate=certificate, key=key, server_name=server_name)


def require_encryption(ca: Path | None, *files: Path | None) -> None:
    """Raises StartupFailure if a certificate or key is given without `ca`, which means no TLS."""
    if ca is None and any(file is not None for file in files):
        raise StartupFailure(
            f"tls_ca: must be given together with tls_certificate and tls_key (--tls-ca, {CA}); "
            "got none"
        )


@contextmanager
def progress(what: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """A progress bar. Yields a function that takes the number of items done since its last call."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=error_console, transient=True) as bar:
        task = bar.add_task(what, total=total, completed=done)
        yield lambda more: bar.advance(task, more)


@contextmanager
def clear_errors() -> Iterator[None]:
    """Reports an error as one line and an exit status instead of a traceback."""
    try:
        yield
    except BrokenPipeError:  # the pipe's reader has left, which typer handles
        raise
    except ModuleNotFoundError as error:
        rule = "is not installed; install what the command needs, such as draftloop[orchestrator]"
        error_console.print(f"draftloop: {error.name} {rule}", style="red", markup=False)
        raise typer.Exit(EXIT_FAILED) from None
    except (DraftloopError, OSError) as error:
        error_console.print(f"draftloop: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        error_console.print("cancelled")
        raise typer.Exit(130) from None
