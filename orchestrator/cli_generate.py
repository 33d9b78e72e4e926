"""`draftloop generate`: the text goes to standard output, everything else to standard error."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from draftloop.client import DEFAULT_ADDRESS, Client, Stream, Summary
from draftloop.completion import Completion
from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.phrase import PhraseScope
from draftloop.request import GenerationParameters, SamplingParameters
from draftloop.speculation import AUTOREGRESSIVE, STRATEGIES, Speculation
from draftloop.tree import SOURCE_NAMES
from orchestrator import terminal
from orchestrator.cli_common import (
    ApiKey,
    Server,
    TlsCa,
    TlsCertificate,
    TlsKey,
    TlsServerName,
    clear_errors,
    console,
    error_console,
    make_client,
)

AnySummary = TypeVar("AnySummary", bound=Summary)
RunResult = tuple[AnySummary, tuple[int, ...]]  # how a generation ended, and its tokens


def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue; - reads standard input.")],
    strategy: Annotated[str, typer.Option(help=f"One of {', '.join(STRATEGIES)}.")] = "",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Keep tokens up to this total probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep so many tokens; 0 keeps all.")] = 0,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 128,
    max_draft_tokens: Annotated[
        int | None, typer.Option(help="Fixed draft length; measured costs decide without it.")
    ] = None,
    phrases: Annotated[
        PhraseScope, typer.Option(help="Which phrases it reads and writes.")
    ] = PhraseScope.SHARED,
    tenant: Annotated[str, typer.Option(help="Whose phrases; empty without tenants.")] = "",
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the output.")] = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="File with a JSON Schema that the output must fit.")
    ] = None,
    regex: Annotated[
        str | None, typer.Option(help="Regular expression that the whole output must match.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Then decode it plainly, too, and show both speeds.")
    ] = False,
    echo: Annotated[
        bool | None, typer.Option(help="Write the prompt before the text; a terminal alone does.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write one JSON object: text, tokens, figures.")
    ] = False,
    server: Server = DEFAULT_ADDRESS,
    api_key: ApiKey = None,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_server_name: TlsServerName = "",
) -> None:
    """Continue a prompt on a running deployment; figures go to standard error."""
    with clear_errors():
        sampling = SamplingParameters(
            temperature=temperature, top_p=top_p, top_k=top_k, grammar=_grammar(json_schema, regex)
        )
        speculation = Speculation(
            strategy=strategy, max_draft_tokens=max_draft_tokens, phrases=phrases
        )
        parameters = GenerationParameters(
            text=_standard_input() if prompt == "-" else prompt, sampling=sampling, seed=seed,
            max_tokens=max_tokens, speculation=speculation, tenant=tenant, stop=tuple(stop or ()),
        )  # fmt: skip
        tls = (tls_ca, tls_certificate, tls_key, tls_server_name)
        with make_client(server, api_key, *tls) as client:
            if as_json:
                _write_json(client, parameters, compare=compare)
            else:
                _stream(client, parameters, compare=compare, echo=echo)


def _standard_input() -> str:
    if sys.stdin is None:
        raise InvalidInput("prompt", "needs an open standard input", "-")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidInput("prompt", f"must be text in UTF-8 ({error})", "standard input") from None


def _grammar(json_schema: Path | None, regex: str | None) -> Grammar | None:
    if json_schema is None:
        return None if regex is None else Grammar("regex", regex)
    if regex is not None:
        raise InvalidInput("regex", "must not be given with a JSON Schema", regex)
    try:
        return Grammar("json_schema", json_schema.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        rule = f"must be a file of text that can be read ({error})"
        raise InvalidInput("json_schema", rule, str(json_schema)) from None


def _stream(
    client: Client, parameters: GenerationParameters, *, compare: bool, echo: bool | None
) -> None:
    """Prints text as it comes. Into a pipe, the prompt comes first only if `echo` says so."""
    prompt = (parameters.text or "") if (console.is_terminal if echo is None else echo) else ""

    def run(request: GenerationParameters) -> RunResult[Summary]:
        return _print(client.stream(request), prompt)

    if not compare:
        run(parameters)
        return
    (drafted, drafted_ids), (plain, plain_ids) = _run_both_ways(run, parameters)
    terminal.show_comparison(error_console, plain, drafted, plain_ids == drafted_ids)


def _print(pieces: Stream, prompt: str) -> RunResult[Summary]:
    printer = terminal.TextPrinter(console)
    token_ids: list[int] = []
    for piece in pieces:
        if not token_ids:
            _show_prompt(prompt)
        printer.show(piece)
        token_ids.extend(piece.token_ids)
    console.print()
    printer.legend(error_console)
    terminal.show_summary(error_console, pieces.summary)
    return pieces.summary, tuple(token_ids)


def _show_prompt(text: str) -> None:
    if console.is_terminal:
        console.print(text, style="dim", end="", markup=False, soft_wrap=True)
    else:
        terminal.write_unchanged(console, text)


def _write_json(client: Client, parameters: GenerationParameters, *, compare: bool) -> None:
    def run(request: GenerationParameters) -> RunResult[Completion]:
        completion = client.generate(request)
        return completion, completion.token_ids

    if compare:
        (drafted, drafted_ids), (plain, plain_ids) = _run_both_ways(run, parameters)
        answer: dict[str, Any] = {"drafted": _as_json(drafted), "plain": _as_json(plain)}
        answer["identical"] = plain_ids == drafted_ids
    else:
        answer = _as_json(run(parameters)[0])
    typer.echo(json.dumps(answer))


def _as_json(completion: Completion) -> dict[str, Any]:
    figures = dataclasses.asdict(completion.figures)
    for source in figures["sources"]:
        source["source"] = SOURCE_NAMES[source["source"]]
    return {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
        "request_id": completion.request_id,
        "tokens_per_second": completion.tokens_per_second,
        "usage": dataclasses.asdict(completion.usage),
        "figures": figures,
        "timings": dataclasses.asdict(completion.timings),
    }


def _run_both_ways(
    run: Callable[[GenerationParameters], RunResult[AnySummary]], parameters: GenerationParameters
) -> tuple[RunResult[AnySummary], RunResult[AnySummary]]:
    """Runs the request as asked for, then by plain decoding with the same seed and phrase scope.

    In this order, since phrases of a plain run that came first would teach the other its answer.
    """
    drafted = run(parameters)
    plain_speculation = dataclasses.replace(parameters.speculation, strategy=AUTOREGRESSIVE)
    plain_request = dataclasses.replace(
        parameters, speculation=plain_speculation, seed=drafted[0].seed
    )
    return drafted, run(plain_request)
