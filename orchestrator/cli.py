"""`draftloop`: start everything on this machine, generate, look, serve one role."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, get_args

import typer

from draftloop import __version__
from draftloop.client import DEFAULT_ADDRESS, Client, Summary
from draftloop.config import Dtype
from draftloop.errors import DraftloopError, InvalidInput
from draftloop.grammar import Grammar
from draftloop.phrase import PhraseScope
from draftloop.request import GenerationParameters, SamplingParameters
from draftloop.speculation import AUTOREGRESSIVE, STRATEGIES, Speculation
from orchestrator import cli_health, cli_keys, cli_phrases, cli_profile, terminal
from orchestrator.cli_common import (
    ApiKey,
    Server,
    TlsCa,
    clear_errors,
    client_of,
    console,
)
from orchestrator.cli_health import Role
from orchestrator.launcher import Stack, interruptible
from orchestrator.role_process import RoleProcess, exec_role
from orchestrator.stack_config import StackConfig

app = typer.Typer(
    help="Lossless speculative decoding: the same tokens, sooner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(cli_phrases.app, name="phrases")
app.add_typer(cli_keys.app, name="keys")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        console.print(__version__)
        raise typer.Exit


@app.command()
def up(
    config: Annotated[Path | None, typer.Option(help="TOML file with these settings.")] = None,
    target: Annotated[Path | None, typer.Option(help="Folder of the target model.")] = None,
    draft: Annotated[
        Path | None, typer.Option(help="Folder of the draft model; none starts no drafter.")
    ] = None,
    smaller_models: Annotated[
        str | None, typer.Option(help="Folders of further draft models, separated by commas.")
    ] = None,
    inflate: Annotated[str | None, typer.Option(help="Cost inflation, such as 300M.")] = None,
    dtype: Annotated[str | None, typer.Option(help=f"One of {', '.join(get_args(Dtype))}.")] = None,
    quantization: Annotated[
        str | None, typer.Option(help="Of the target model: none, int8 or w8a8.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None,
    draft_device: Annotated[
        str | None, typer.Option(help="The draft model's, where it is another one.")
    ] = None,
    tensor_parallel_size: Annotated[
        int | None, typer.Option(help="Devices among which the target model is split.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Public port; 0 takes a free one.")] = None,
    http_port: Annotated[
        int | None, typer.Option(help="Port of the HTTP API; 0 takes a free one.")
    ] = None,
    phrases_url: Annotated[
        str | None, typer.Option(help="Phrase log, such as redis://host; memory:// without.")
    ] = None,
    start_timeout_s: Annotated[
        float | None, typer.Option(help="Seconds until everything is warm; 180 without.")
    ] = None,
) -> None:
    """Start verifier, drafter and orchestrator on this machine; Ctrl-C stops them."""
    with clear_errors():
        stack_config = StackConfig.read(
            config, target=target, draft=draft, smaller_models=smaller_models, inflate=inflate,
            dtype=dtype, device=device, draft_device=draft_device, quantization=quantization,
            tensor_parallel_size=tensor_parallel_size,
            port=port, http_port=http_port, phrases_url=phrases_url,
            start_timeout_s=start_timeout_s,
        )  # fmt: skip
        with interruptible():
            _run_stack(stack_config)


def _run_stack(config: StackConfig) -> None:
    def announce(process: RoleProcess) -> None:
        pid = process.process.pid if process.process else "?"
        console.print(f"[green]ready[/] {process.role:<13} {process.address:<22} pid {pid}")

    try:
        console.print("starting verifier and drafter, this takes a few seconds …")
        with Stack(config, announce) as stack:
            console.print(f"logs: {stack.folder}")
            if stack.http_address:
                console.print(f"OpenAI-compatible HTTP: http://{stack.http_address}/v1")
            console.print(
                f'try: draftloop generate "def main():" --compare --server {stack.address}'
            )
            ended = stack.wait()
            raise DraftloopError(f"{ended.role} ended: {ended.last_words()} (logs: {stack.folder})")
    except KeyboardInterrupt:
        console.print("stopped")


@app.command()
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
        bool, typer.Option("--compare", help="Show plain decoding beside it.")
    ] = False,
    server: Server = DEFAULT_ADDRESS,
    api_key: ApiKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Continue a prompt on a running deployment, streaming to the terminal."""
    with clear_errors():
        text = _standard_input() if prompt == "-" else prompt
        parameters = GenerationParameters(
            text=text,
            sampling=SamplingParameters(
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                grammar=_grammar(json_schema, regex),
            ),
            seed=seed,
            max_tokens=max_tokens,
            speculation=Speculation(
                strategy=strategy, max_draft_tokens=max_draft_tokens, phrases=phrases
            ),
            tenant=tenant,
            stop=tuple(stop or ()),
        )
        with client_of(server, api_key, tls_ca) as client:
            (_compare if compare else _stream)(client, parameters)


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


def _stream(client: Client, parameters: GenerationParameters) -> tuple[Summary, list[int]]:
    """Prints one generation; returns its summary and tokens."""
    printer = terminal.TextPrinter(console)
    token_ids: list[int] = []
    pieces = client.stream(parameters)
    for piece in pieces:
        if not token_ids:
            _show_prompt(parameters.text or "")
        printer.show(piece)
        token_ids.extend(piece.token_ids)
    console.print()
    printer.legend()
    terminal.show_summary(console, pieces.summary)
    return pieces.summary, token_ids


def _show_prompt(text: str) -> None:
    if console.is_terminal:
        console.print(text, style="dim", end="", markup=False, soft_wrap=True)
    else:
        terminal.show_as_it_is(console, text)


def _compare(client: Client, parameters: GenerationParameters) -> None:
    without = Speculation(strategy=AUTOREGRESSIVE)
    plain, plain_ids = _stream(client, dataclasses.replace(parameters, speculation=without))
    other, other_ids = _stream(client, dataclasses.replace(parameters, seed=plain.seed))
    terminal.show_comparison(console, plain, other, plain_ids == other_ids)


@app.command()
def info(server: Server = DEFAULT_ADDRESS, api_key: ApiKey = None, tls_ca: TlsCa = None) -> None:
    """Show models, strategies and limits of a running deployment."""
    with clear_errors(), client_of(server, api_key, tls_ca) as client:
        terminal.show_info(console, client.info())


app.command()(cli_profile.profile)
app.command()(cli_health.health)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def serve(
    context: typer.Context,
    role: Annotated[str, typer.Argument(help=f"One of {', '.join(Role)}.")],
) -> None:
    """Serve one role in this process; its flags follow (`draftloop serve verifier --help`)."""
    if role in ("--help", "-h"):
        console.print(context.get_help(), markup=False)
        return
    if role not in [*Role]:
        raise typer.BadParameter(f"{role!r} is none of {', '.join(Role)}", param_hint="ROLE")
    exec_role(role, context.args)


def main() -> None:
    """The command's entry point."""
    app()


if __name__ == "__main__":
    main()
