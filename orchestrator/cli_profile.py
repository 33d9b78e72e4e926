"""`draftloop profile`: what forwards cost on a running deployment, in a table or picture."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from draftloop.client import DEFAULT_ADDRESS
from draftloop.errors import InvalidInput
from draftloop.model_info import ModelInfo
from orchestrator.cli_common import (
    ApiKey,
    Server,
    TlsCa,
    TlsCertificate,
    TlsKey,
    TlsServerName,
    clear_errors,
    console,
    make_client,
)
from orchestrator.cost_plot import draw
from orchestrator.cost_table import break_even, cost_rows

BAR_WIDTH = 24
DRAFT_SIZES = (3, 7, 15)


def profile(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves into this .svg file.")] = None,
    server: Server = DEFAULT_ADDRESS,
    api_key: ApiKey = None,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_server_name: TlsServerName = "",
) -> None:
    """Show what a forward costs by tokens, context and batch: measured, and corrected since."""
    with clear_errors():
        if plot is not None:
            _check_plot_path(plot)
        tls = (tls_ca, tls_certificate, tls_key, tls_server_name)
        with make_client(server, api_key, *tls) as client:
            info = client.info()
        models = {"verifier": info.verifier}
        if info.drafter is not None:
            models["drafter"] = info.drafter
        if plot is not None:
            _write(plot, draw(models))
        if as_json:
            typer.echo(json.dumps({role: _as_json(model) for role, model in models.items()}))
            return
        for role, model in models.items():
            _show(role, model)
        _show_break_even(info.verifier)
        if plot is not None:
            console.print(f"drawn: {plot}", markup=False, soft_wrap=True)


def _check_plot_path(plot: Path) -> None:
    if plot.suffix.lower() != ".svg":
        raise InvalidInput("plot", "must end in .svg, the one format that is drawn", str(plot))
    if not plot.parent.is_dir():
        rule = f"must be a file in a folder that exists, and there is no {plot.parent}"
        raise InvalidInput("plot", rule, str(plot))


def _write(plot: Path, picture: str) -> None:
    try:
        plot.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise InvalidInput("plot", f"cannot be written ({error.strerror})", str(plot)) from None


def _as_json(model: ModelInfo) -> dict[str, object]:
    return {
        "model": model.model_name,
        "device": model.device,
        "dtype": model.dtype,
        "quantization": model.quantization,
        "parameters": model.parameters,
        "cost_inflation": model.cost_inflation,
        "points": [dataclasses.asdict(row) for row in cost_rows(model)],
    }


def _show(role: str, model: ModelInfo) -> None:
    rows = cost_rows(model)
    if not rows:
        console.print(f"{role}: nothing was measured")
        return
    table = Table(title=f"{role}: {escape(model.model_name)}, {model.format}, {model.place}")
    for name in ("tokens", "context", "batch", "ms", "tokens/ms", "of the first"):
        table.add_column(name, justify="right")
    table.add_column("")
    longest = max(row.ms for row in rows)
    place = (rows[0].context, rows[0].batch)
    for row in rows:
        if (row.context, row.batch) != place:
            table.add_section()
            place = (row.context, row.batch)
        table.add_row(
            str(row.tokens), str(row.context), str(row.batch), f"{row.ms:.2f}",
            f"{row.tokens_per_ms:.3f}", f"{row.relative:.2f}x",
            "█" * max(1, round(BAR_WIDTH * row.ms / longest)),
        )  # fmt: skip
    console.print(table)


def _show_break_even(verifier: ModelInfo) -> None:
    if verifier.cost_curve:
        sizes = ", ".join(
            f"{nodes} from {break_even(verifier, nodes):.2f}" for nodes in DRAFT_SIZES
        )
        console.print(
            f"verifying a draft pays from so many accepted tokens a round, by its size: {sizes}",
            soft_wrap=True,
        )
