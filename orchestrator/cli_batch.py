"""`draftloop batch`: answers a file of requests into a file of answers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftloop.config import DEFAULT_HTTP_PORT, LOOPBACK
from draftloop.errors import InvalidInput
from orchestrator.cli_common import (
    ApiKey,
    TlsCa,
    TlsCertificate,
    TlsKey,
    TlsServerName,
    clear_errors,
    error_console,
    progress,
)

if TYPE_CHECKING:
    import httpx

    from orchestrator.batch.batch import Tally

EXIT_SOME_FAILED = 1


def batch(
    requests: Annotated[Path, typer.Argument(help="JSON Lines in the form of OpenAI's Batch API.")],
    answers: Annotated[Path, typer.Argument(help="File for the answers, in the same form.")],
    server: Annotated[
        str, typer.Option(help="Address of a running deployment's HTTP API.")
    ] = f"http://{LOOPBACK}:{DEFAULT_HTTP_PORT}",
    concurrency: Annotated[int, typer.Option(min=1, max=4096, help="Requests at a time.")] = 16,
    timeout_s: Annotated[
        float, typer.Option(min=1, help="Most seconds to wait for an answer.")
    ] = 900,
    patience_s: Annotated[
        float, typer.Option(min=0, help="Most seconds to wait for a server that is away.")
    ] = 300,
    api_key: ApiKey = None,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_server_name: TlsServerName = "",
) -> None:
    """Answer a file of requests. The same command goes on where an earlier one was stopped."""
    with clear_errors():
        from orchestrator.batch.connection import connect
        from orchestrator.batch.requests_file import check_requests

        if requests.exists() and not requests.is_file():
            rule = "must be a file, and no pipe: it is read twice"
            raise InvalidInput("requests", rule, str(requests))
        if answers.exists() and answers.samefile(requests):
            raise InvalidInput("answers", "must be another file than the requests", str(answers))
        client = connect(
            server, api_key=api_key, timeout_s=timeout_s, concurrency=concurrency,
            tls_ca=tls_ca, tls_certificate=tls_certificate, tls_key=tls_key,
            tls_server_name=tls_server_name,
        )  # fmt: skip
        custom_ids = check_requests(requests)  # the whole file, so that a mistake sends nothing
        began_s = time.monotonic()
        tally = asyncio.run(_answer(client, requests, answers, custom_ids, concurrency, patience_s))
    _show(tally, time.monotonic() - began_s)
    if tally.failed:
        raise typer.Exit(EXIT_SOME_FAILED)


async def _answer(
    client: httpx.AsyncClient,
    requests: Path,
    answers: Path,
    custom_ids: set[str],
    concurrency: int,
    patience_s: float,
) -> Tally:
    """Answers the requests that have no answer in the file of answers yet."""
    from orchestrator.batch.answers_file import AnswersFile
    from orchestrator.batch.asker import Asker
    from orchestrator.batch.batch import run
    from orchestrator.batch.requests_file import read_requests_by_id

    async with client:
        asker = Asker(client, patience_s)
        await asker.require_server()
        with AnswersFile(answers) as answers_file:
            remaining = custom_ids - answers_file.answered
            unanswered = read_requests_by_id(requests, remaining)
            with progress(
                "answering", len(custom_ids), done=len(custom_ids) - len(remaining)
            ) as report_progress:
                tally = await run(
                    unanswered,
                    answers_file,
                    asker,
                    concurrency=concurrency,
                    report_progress=report_progress,
                )
            if missing_count := len(remaining) - tally.answered - tally.failed:
                rule = (
                    "must stay as it is until all are answered; "
                    f"{missing_count} of its requests are gone"
                )
                raise InvalidInput("requests", rule, str(requests))
            return tally


def _show(tally: Tally, seconds: float) -> None:
    error_console.print(
        f"{tally.answered:,} answered, {tally.failed:,} failed; {tally.tokens:,} tokens in "
        f"{seconds:.1f} s: {tally.tokens / seconds:.0f} a second"
    )
    if tally.failed:
        text = f"the first that failed: {tally.first_failure}"
        error_console.print(f"draftloop: {text}", style="red", markup=False, soft_wrap=True)
        error_console.print("the same command asks again for what failed", style="dim")
