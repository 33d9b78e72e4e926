"""Results as tables: for the terminal, or as Markdown.

python -m benchmarks.table benchmarks/results/bench.json
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.looping import DEFINITION
from benchmarks.results import Results, Row
from benchmarks.systems import PROFILES

TARGET_OVERHEAD_MS = 1.5
NONE = "-"

Columns = dict[str, Callable[[Row], str]]


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"


def _split(part: str) -> Callable[[Row], str]:
    return lambda row: f"{getattr(row.round_ms, part):.2f}" if row.round_ms else NONE


SPEED: Columns = {
    "method": lambda row: row.method,
    "tokens/s": lambda row: f"{row.tokens_per_second:.1f}",
    "ratio": lambda row: f"{row.ratio:.2f}x",
    "tokens/round": lambda row: f"{row.tokens_per_round:.2f}",
    "accepted": lambda row: _percent(row.acceptance),
    "looping": lambda row: _percent(row.looping),
    "equal": lambda row: _percent(row.equality),
    "runs": lambda row: str(row.runs),
}
ROUND: Columns = {
    "method": lambda row: row.method,
    "draft": _split("draft_forward"),
    "verify": _split("verify_forward"),
    "wire": _split("wire"),
    "rest": _split("rest"),
    "overhead": _split("overhead"),
}
SPEED_LEGEND = (
    "tokens/s: after the first token. ratio: to our plain decoding in the same repetition. "
    "accepted: share of the drafted tokens. "
    f"looping: {DEFINITION}. "
    "equal: the same tokens as plain decoding of the same system. All are medians or shares."
)
ROUND_LEGEND = (
    "Milliseconds of a round: forwards of the draft and the target model, wire, rest. "
    f"overhead: all that is no forward (goal: at most {TARGET_OVERHEAD_MS} ms). Medians."
)


def heading(row: Row) -> str:
    """What the rows of one table have in common."""
    chosen = f"T = {row.temperature:g}" if row.temperature else "greedy"
    return f"{row.workload}, {PROFILES[row.profile].title}, {chosen}"


def grouped(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by heading, in order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(heading(row), []).append(row)
    return groups


def tables(rows: Sequence[Row]) -> Iterator[tuple[str, Columns, list[Row]]]:
    """Title, columns and rows: speeds by profile and temperature, then our rounds likewise."""
    for title, group in grouped(rows).items():
        yield title, SPEED, group
    for title, group in grouped([row for row in rows if row.round_ms]).items():
        yield f"a round, {title}", ROUND, group


def show(console: Console, rows: Sequence[Row]) -> None:
    """On the terminal."""
    for title, columns, group in tables(rows):
        shown = Table(title=title, title_justify="left")
        for name in columns:
            is_text = name == "method"
            shown.add_column(name, no_wrap=is_text, justify="left" if is_text else "right")
        for row in group:
            shown.add_row(*(cell(row) for cell in columns.values()))
        console.print(shown)
    for legend in (SPEED_LEGEND, ROUND_LEGEND):
        console.print(legend, style="dim", highlight=False)


def markdown(rows: Sequence[Row]) -> str:
    """The same as Markdown."""
    parts = []
    for title, columns, group in tables(rows):
        lines = [f"**{title}**", "", f"| {' | '.join(columns)} |"]
        lines.append("|---|" + "---:|" * (len(columns) - 1))
        lines += [f"| {' | '.join(cell(row) for cell in columns.values())} |" for row in group]
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, SPEED_LEGEND, ROUND_LEGEND])


if __name__ == "__main__":
    print(markdown(Results.read(Path(sys.argv[1])).rows))
