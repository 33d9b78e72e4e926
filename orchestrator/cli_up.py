"""`draftloop up`: all roles on this machine, until Ctrl-C."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, get_args

import typer

from draftloop.config import Dtype, ModelServiceSettings
from draftloop.errors import DraftloopError, StartupFailure
from draftloop.speculation import STRATEGIES
from draftloop.suggestion import flag_of, unknown_flag_message
from orchestrator.cli_common import clear_errors, console
from orchestrator.config import OrchestratorSettings
from orchestrator.launcher import Stack, interruptible
from orchestrator.role_process import RoleProcess
from orchestrator.stack_config import StackConfig
from phrase_store.config import PhraseSettings
from phrase_store.log import LogOptions, LogUnavailable, open_log

# Unknown flags are handled here: who mistypes one needs a specific message and not the usage.
PASS_UNKNOWN_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}
# Listed here, since the drafter's settings may not be imported.
DRAFTER_ONLY_SETTINGS = ("draft_ahead", "draft_temperature")
ROLE_SETTINGS: dict[str, Iterable[str]] = {
    "verifier": ModelServiceSettings.model_fields,
    "drafter": (
        *ModelServiceSettings.model_fields,
        *PhraseSettings.model_fields,
        *DRAFTER_ONLY_SETTINGS,
    ),
    "orchestrator": OrchestratorSettings.model_fields,
}
CHECK_OPTIONS = LogOptions(connect_timeout_s=1.0, operation_timeout_s=1.0)


def up(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="TOML file with these settings.")] = None,
    target: Annotated[Path | None, typer.Option(help="Folder of the target model.")] = None,
    draft: Annotated[  # no Path, as typer would make one of "none"
        str | None, typer.Option(help="Folder of the draft model; none starts no drafter.")
    ] = None,
    smaller_models: Annotated[
        str | None, typer.Option(help="Folders of further draft models, separated by commas.")
    ] = None,
    inflate: Annotated[str | None, typer.Option(help="Cost inflation, such as 300M.")] = None,
    dtype: Annotated[str | None, typer.Option(help=f"One of {', '.join(get_args(Dtype))}.")] = None,
    quantization: Annotated[
        str | None, typer.Option(help="Of the target model: none, int8, w8a8 or w4a8.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None,
    draft_device: Annotated[
        str | None, typer.Option(help="The draft model's, where it is another one.")
    ] = None,
    tensor_parallel_size: Annotated[
        int | None, typer.Option(help="Devices among which the target model is split.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address that all roles listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Public port; 0 takes a free one.")] = None,
    http_port: Annotated[
        str | None, typer.Option(help="Port of the HTTP API; 0 takes a free one; none: no API.")
    ] = None,
    verifier_port: Annotated[int | None, typer.Option(help="0 takes a free one.")] = None,
    drafter_port: Annotated[int | None, typer.Option(help="0 takes a free one.")] = None,
    default_strategy: Annotated[
        str | None, typer.Option(help=f"Of requests naming none: {', '.join(STRATEGIES)}.")
    ] = None,
    phrases_url: Annotated[
        str | None, typer.Option(help="Phrase log, such as redis://host; memory:// without.")
    ] = None,
    start_timeout_s: Annotated[
        float | None, typer.Option(help="Seconds until everything is warm; 180 without.")
    ] = None,
    verifier_flags: Annotated[
        str | None, typer.Option(help="Further flags, such as '--max-sessions 32'.")
    ] = None,
    drafter_flags: Annotated[str | None, typer.Option(help="The same for the drafter.")] = None,
    orchestrator_flags: Annotated[
        str | None, typer.Option(help="The same for the orchestrator.")
    ] = None,
) -> None:
    """Start verifier, drafter and orchestrator on this machine; Ctrl-C stops them."""
    with clear_errors():
        _refuse_unknown(context.args)
        # All options but one are settings, under the same names.
        values = {name: context.params[name] for name in StackConfig.model_fields}
        stack_config = StackConfig.read(config, **values)
        with interruptible():
            _run_stack(stack_config)


def _refuse_unknown(arguments: list[str]) -> None:
    """Raises StartupFailure if anything of the command line is left."""
    if not arguments:
        return
    argument, following = [*arguments, ""][:2]
    flag, separator, _ = argument.partition("=")
    if not flag.startswith("-"):
        raise StartupFailure(f"{argument}: `draftloop up` takes flags alone")
    roles = [role for role, names in ROLE_SETTINGS.items() if flag in map(flag_of, names)]
    if not roles:
        raise StartupFailure(unknown_flag_message(flag, ["config", *StackConfig.model_fields]))
    quoted = (
        [argument]
        if separator or not following or following.startswith("-")
        else [argument, following]
    )
    key = f"{roles[0]}_flags"
    raise StartupFailure(
        f"{flag}: a flag of {' and '.join(roles)}, not of `draftloop up`: say "
        f"{flag_of(key)} {shlex.quote(shlex.join(quoted))}, or {key} = {json.dumps(quoted)} "
        "in the file of --config"
    )


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
            _warn_if_phrase_log_unreachable(stack.phrases_url)
            console.print(
                f'try: draftloop generate "def main():" --compare --server {stack.address}'
            )
            ended = stack.wait()
            raise DraftloopError(
                f"{ended.role} ended: {ended.last_log_line()} (logs: {stack.folder})"
            )
    except KeyboardInterrupt:
        console.print("stopped; the logs are removed")


def _warn_if_phrase_log_unreachable(url: str) -> None:
    """Warns if the phrase log cannot be reached: requests go on without it, unnoticed."""
    try:
        log = open_log(url, "up", CHECK_OPTIONS)
        try:
            log.length()
        finally:
            log.close()
    except LogUnavailable as error:
        console.print(
            f"the phrase log is not reachable, generation goes on without it: {error}",
            style="yellow", markup=False, soft_wrap=True,
        )  # fmt: skip
