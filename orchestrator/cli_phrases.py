"""`draftloop phrases`: inspects a phrase log, empties it, writes it to a file and reads it back."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from draftloop.environment import PHRASES_URL
from draftloop.errors import InvalidInput
from orchestrator.cli_common import clear_errors, console, error_console, progress
from orchestrator.replaced_file import replacing

if TYPE_CHECKING:
    from phrase_store.log import PhraseLog

app = typer.Typer(help="Look into a phrase log, empty it, keep it in a file.", no_args_is_help=True)

Url = Annotated[
    str,
    typer.Option(
        "--phrases-url",
        "--phrase-log",
        envvar=list(PHRASES_URL),
        show_envvar=True,
        help="Phrase log of the deployment, such as redis://host.",
    ),
]
Model = Annotated[str | None, typer.Option(help="Only this model's fingerprint.")]
Tenant = Annotated[str | None, typer.Option(help='Only this tenant; "" is who names none.')]
MEMORY = "memory://"


def _require_shared(url: str) -> None:
    from phrase_store.log import check_usable

    if url.lower().startswith(MEMORY):
        raise InvalidInput(
            "phrases_url",
            "must name a log that processes share: phrases of memory:// never leave the process "
            "that holds them, so there is nothing to see or to change from here",
            url,
        )
    check_usable(url)


def _matching_namespaces(url: str, model: str | None, tenant: str | None) -> list[str]:
    """The namespaces that have a log and match the options."""
    from phrase_store.log import list_namespaces
    from phrase_store.namespace import owners_of
    from phrase_store.transfer import LONG_TIMEOUTS

    _require_shared(url)
    names = list_namespaces(url, LONG_TIMEOUTS)
    return [
        name
        for name, (log_model, log_tenant) in zip(names, map(owners_of, names), strict=True)
        if model in (None, log_model) and tenant in (None, log_tenant)
    ]


def _logs(url: str, names: list[str]) -> Iterator[tuple[str, PhraseLog]]:
    """Each namespace's log with its name. A log is open until the next one is requested."""
    from phrase_store.transfer import open_with_long_timeouts

    for name in names:
        with open_with_long_timeouts(url, name) as log:
            yield name, log


def _total_length(url: str, names: list[str]) -> int:
    return sum(log.length() for _, log in _logs(url, names))


@app.command()
def stats(url: Url = MEMORY, model: Model = None, tenant: Tenant = None) -> None:
    """Show what the log holds, by model and tenant."""
    with clear_errors():
        from phrase_store.namespace import owners_of
        from phrase_store.transfer import count

        names = _matching_namespaces(url, model, tenant)
        table = Table(title="phrase log")
        for column in ("model", "tenant"):
            table.add_column(column, overflow="fold")
        for column in ("records", "phrases", "tokens", "size", "damaged"):
            table.add_column(column, justify="right")
        with progress("reading", _total_length(url, names)) as report_progress:
            for name, log in _logs(url, names):
                census = count(log, report_progress)
                log_model, log_tenant = owners_of(name)
                table.add_row(
                    escape(log_model), escape(log_tenant) or "[dim]none[/]", f"{census.records:,}",
                    f"{census.phrases:,}", f"{census.tokens:,}", decimal(census.bytes),
                    f"{census.damaged:,}",
                )  # fmt: skip
        console.print(table if names else "the log holds nothing of that")


@app.command()
def clear(
    url: Url = MEMORY,
    model: Model = None,
    tenant: Tenant = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Empty the log; every process that follows it forgets its phrases too."""
    with clear_errors():
        from phrase_store.namespace import namespace_name
        from phrase_store.transfer import clear_log

        names = _matching_namespaces(url, model, tenant)
        if not names and model is not None and tenant is not None:
            # the log may be gone while processes still know phrases
            names = [namespace_name(model, tenant)]
        if not names:
            console.print(
                "the log holds nothing of that; where it was lost, processes may know phrases all "
                "the same: name --model and --tenant to have them forgotten"
            )
            return
        for name in names:
            console.print(f"  {name}", markup=False)
        if not yes and not typer.confirm(
            f"Forget {_total_length(url, names):,} records in {len(names)} namespaces?"
        ):
            console.print("nothing was changed")
            raise typer.Exit(1)
        for _, log in _logs(url, names):
            clear_log(log)
        console.print(f"cleared {len(names)} namespaces")


@app.command(name="export")
def export_(
    file: Annotated[Path, typer.Argument(help="File to write; JSON Lines.")],
    url: Url = MEMORY,
    model: Model = None,
    tenant: Tenant = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write the log's phrases to a file. They are what users wrote and read: keep it safe."""
    with clear_errors():
        from phrase_store.transfer import export_log, write_header

        names = _matching_namespaces(url, model, tenant)
        if file.exists() and not force:
            raise InvalidInput("file", "must not exist, or give --force to replace it", str(file))
        record_count = 0
        with (
            progress("exporting", _total_length(url, names)) as report_progress,
            replacing(file) as target,
        ):
            write_header(target)
            for name, log in _logs(url, names):
                record_count += export_log(log, name, target, report_progress)
        # Not to standard output, which may be the file.
        error_console.print(f"wrote {record_count:,} records of {len(names)} namespaces to {file}",
                            markup=False, soft_wrap=True)  # fmt: skip


@app.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(help="File that `export` wrote.")], url: Url = MEMORY
) -> None:
    """Add a file's phrases to the log, where every process that follows it learns them."""
    with clear_errors():
        from phrase_store.transfer import check_file, import_file

        _require_shared(url)
        with _rereadable(file) as source:
            total = check_file(source)  # all of it, so that a mistake leaves the log unchanged
            with progress("importing", total) as report_progress:
                phrases = import_file(url, source, report_progress)
        console.print(f"imported {phrases:,} phrases in {total:,} records")


@contextmanager
def _rereadable(file: Path) -> Iterator[Path]:
    """The file or, if it is a pipe, which can be read only once, a copy of its content."""
    if file.is_file():
        yield file
        return
    with file.open("rb") as pipe, tempfile.NamedTemporaryFile(prefix="draftloop-") as copy:
        shutil.copyfileobj(pipe, copy)
        copy.flush()
        yield Path(copy.name)
