"""Results as tables: for the terminal, or as Markdown.

    python -m benchmarks.table benchmarks/results/bench.json
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.looping import DEFINITION
from benchmarks.results import Results, Row
from benchmarks.systems import PROFILES

TARGET_OVERHEAD_MS = 1.5
NONE = "-"


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"


def _split(part: str) -> Callable[[Row], str]:
    return lambda row: f"{getattr(row.round_ms, part):.2f}" if row.round_ms else NONE


SPEED: dict[str, Callable[[Row], str]] = {
    "method": lambda row: row.method,
    "tokens/s": lambda row: f"{row.tokens_per_second:.1f}",
    "ratio": lambda row: f"{row.ratio:.2f}x",
    "tokens/round": lambda row: f"{row.tokens_per_round:.2f}",
    "accepted": lambda row: _percent(row.acceptance),
    "looping": lambda row: _percent(row.looping),
    "equal": lambda row: _percent(row.equality),
    "runs": lambda row: str(row.runs),
}
ROUND: dict[str, Callable[[Row], str]] = {
    "draft": _split("draft_forward"),
    "verify": _split("verify_forward"),
    "wire": _split("wire"),
    "rest": _split("rest"),
    "overhead": _split("overhead"),
}
COLUMNS = {**SPEED, **ROUND}
LEGEND = (
    "tokens/s after the first token; ratio to our plain decoding in the same repetition; "
    "accepted: share of drafted tokens; "
    f"looping: {DEFINITION}; "
    "equal: same tokens as plain decoding of the same system. Of a round, in ms: forwards of "
    "draft and target model, wire, rest; overhead: all that is no forward "
    f"(goal: at most {TARGET_OVERHEAD_MS} ms). Medians."
)


def heading(row: Row) -> str:
    """What the rows of one table have in common."""
    chosen = f"T = {row.temperature:g}" if row.temperature else "greedy"
    return f"{PROFILES[row.profile].title}, {chosen}"


def grouped(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by heading, in order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(heading(row), []).append(row)
    return groups


def show(console: Console, rows: Sequence[Row]) -> None:
    """One table per profile and temperature."""
    for title, group in grouped(rows).items():
        table = Table(title=title, title_justify="left")
        table.add_column("method", no_wrap=True)
        for name in list(COLUMNS)[1:]:
            table.add_column(name, justify="right")
        for row in group:
            table.add_row(*(cell(row) for cell in COLUMNS.values()))
        console.print(table)
    console.print(LEGEND, style="dim", highlight=False)


def markdown(rows: Sequence[Row]) -> str:
    """The same as Markdown."""
    parts = []
    for title, group in grouped(rows).items():
        lines = [f"**{title}**", "", f"| {' | '.join(COLUMNS)} |"]
        lines.append("|---|" + "---:|" * (len(COLUMNS) - 1))
        lines += [f"| {' | '.join(cell(row) for cell in COLUMNS.values())} |" for row in group]
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, LEGEND])


if __name__ == "__main__":
    print(markdown(Results.read(Path(sys.argv[1])).rows))
