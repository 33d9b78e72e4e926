"""`draftloop keys`: makes API keys for a deployment's gRPC and HTTP APIs."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError

from draftloop.config import explain
from draftloop.errors import StartupFailure
from orchestrator.cli_common import clear_errors, error_console
from orchestrator.key_file import KeyEntry, hash_of, new_key

app = typer.Typer(help="API keys of those who may call.", no_args_is_help=True)

Limit = int | None


@app.callback()
def _root() -> None:
    """Keeps `new` a subcommand: without this, typer makes the only command the whole program."""


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Who it is for; shows in logs.")],
    tenant: Annotated[
        str | None, typer.Option(help='Whose phrases; the name if not given, "" is everybody\'s.')
    ] = None,
    requests_per_minute: Annotated[Limit, typer.Option(help="Most requests begun.")] = None,
    concurrent_requests: Annotated[Limit, typer.Option(help="Most requests running.")] = None,
    max_tokens: Annotated[Limit, typer.Option(help="Most tokens of one request.")] = None,
) -> None:
    """Make a key: the entry for the key file on standard output, the key itself beside it, once."""
    key = new_key()
    with clear_errors():
        try:
            entry = KeyEntry(
                name=name,
                sha256=hash_of(key),
                tenant=name if tenant is None else tenant,
                requests_per_minute=requests_per_minute,
                concurrent_requests=concurrent_requests,
                max_tokens=max_tokens,
            )
        except ValidationError as error:
            raise StartupFailure(explain(error)) from None
    typer.echo(entry.toml())
    error_console.print("the key, which is kept nowhere:", style="dim")
    typer.echo(key, err=True)
