"""Results as tables: for the terminal, or as Markdown.

python -m benchmarks.table benchmarks/results/zen4.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.against_best import Comparison, comparisons
from benchmarks.looping import DEFINITION
from benchmarks.output import run_command
from benchmarks.results import Results, Row
from benchmarks.systems import PROFILES

TARGET_OVERHEAD_MS = 1.5
NONE = "-"

Columns = dict[str, Callable[[Row], str]]


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"


def _times(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}x"


def _split(part: str) -> Callable[[Row], str]:
    return lambda row: f"{getattr(row.round_ms, part):.2f}" if row.round_ms else NONE


def _span(least: float | None, most: float | None) -> str:
    return NONE if least is None or most is None else f"{least:.2f}, {most:.2f}"


SPEED: Columns = {
    "method": lambda row: row.method,
    "tokens/s": lambda row: f"{row.tokens_per_second:.1f}",
    "ratio": lambda row: _times(row.ratio),
    "together": lambda row: _times(row.together),
    "within": lambda row: _span(row.least_together, row.most_together),
    "from, to": lambda row: _span(row.least_ratio, row.most_ratio),
    "tokens/round": lambda row: f"{row.tokens_per_round:.2f}",
    "accepted/node": lambda row: _percent(row.acceptance),
    "forwards/token": lambda row: (
        NONE if row.draft_forwards is None else f"{row.draft_forwards:.2f}"
    ),
    "fallback": lambda row: _percent(row.fallback),
    "looping": lambda row: _percent(row.looping),
    "equal": lambda row: _percent(row.equality),
    "n": lambda row: str(row.runs),
}
ROUND: Columns = {
    "method": lambda row: row.method,
    "draft": _split("draft_forward"),
    "verify": _split("verify_forward"),
    "wire": _split("wire"),
    "rest": _split("rest"),
    "overhead": _split("overhead"),
}
AGAINST_BEST: Mapping[str, Callable[[Comparison], str]] = {
    "cell": lambda found: f"{found.workload}, {sampling(found.temperature)}",
    "method": lambda found: found.method,
    "best single": lambda found: found.best,
    "ratio": lambda found: _times(found.ratio),
    "within": lambda found: _span(found.least, found.most),
    "apart": lambda found: _times(found.apart),
    "n": lambda found: str(found.runs),
}
# Left out on the terminal, which is narrower than a page.
ONLY_ON_A_PAGE = {"within", "from, to", "forwards/token", "fallback", "looping"}
TERMINAL = {name: cell for name, cell in SPEED.items() if name not in ONLY_ON_A_PAGE}
SPEED_LEGEND = (
    "tokens/s: after the first token. ratio: to our plain decoding in the same repetition; "
    "together: of all repetitions' times; within what it lies in nine of ten drawings of as many "
    "prompts; from, to: of single runs. tokens/round: per forward of the target model. "
    "accepted/node: share of the verified nodes. forwards/token: of the draft model. "
    "fallback: rounds without the drafter's answer. "
    f"looping: {DEFINITION}. "
    "equal: the same tokens as plain decoding of the same system. n: runs. "
    "All are medians or shares."
)
AGAINST_BEST_LEGEND = (
    "Times as fast as the best single strategy of a cell, by the time of all repetitions in which "
    "every strategy ran. ratio: as the one that was fastest in these; within what it lies in nine "
    "of ten drawings of as many prompts. apart: as the one that was fastest with half of the "
    "prompts, held against with the other half, a geometric mean over ways to halve them: the best "
    "of many is partly a lucky one."
)
ROUND_LEGEND = (
    "Milliseconds of a round: forwards of the draft and the target model, wire, rest. "
    f"overhead: all that is no forward (goal: at most {TARGET_OVERHEAD_MS} ms). Medians."
)


def sampling(temperature: float) -> str:
    """Describes a temperature."""
    return f"T = {temperature:g}" if temperature else "greedy"


def heading(row: Row) -> str:
    """Heading of a table: what its rows have in common."""
    return f"{row.workload}, {PROFILES[row.profile].title}, {sampling(row.temperature)}"


def grouped(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows grouped by heading, in order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(heading(row), []).append(row)
    return groups


def tables(rows: Sequence[Row]) -> Iterator[tuple[str, Columns, list[Row]]]:
    """Title, columns and rows of each table: first the speeds, then the parts of our rounds."""
    for title, group in grouped(rows).items():
        yield title, SPEED, group
    for title, group in grouped([row for row in rows if row.round_ms]).items():
        yield f"a round, {title}", ROUND, group


def matrices(rows: Sequence[Row]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, column names and lines per profile: every method by workload and temperature.

    First a matrix of medians, then one with the ratios of all runs together.
    """
    for profile in dict.fromkeys(row.profile for row in rows):
        found = [row for row in rows if row.profile == profile]
        title = f"speed over plain decoding, {PROFILES[profile].title}"
        yield title, *_matrix(found, lambda row: f"{_times(row.ratio)} (n = {row.runs})")
        if any(row.together for row in found):
            yield f"{title}, all runs together", *_matrix(found, _together)


def _together(row: Row) -> str:
    if row.together is None:
        return NONE
    return f"{_times(row.together)} ({_span(row.least_together, row.most_together)})"


def _matrix(rows: Sequence[Row], cell: Callable[[Row], str]) -> tuple[list[str], list[list[str]]]:
    cells = {(row.method, row.workload, row.temperature): cell(row) for row in rows}
    columns = list(dict.fromkeys((row.workload, row.temperature) for row in rows))
    names = ["method", *(f"{workload}, {sampling(t)}" for workload, t in columns)]
    methods = dict.fromkeys(row.method for row in rows)
    return names, [
        [method, *(cells.get((method, *column), NONE) for column in columns)] for method in methods
    ]


def show(console: Console, rows: Sequence[Row]) -> None:
    """Prints the tables, without the columns that do not fit on a terminal."""
    for title, all_columns, group in tables(rows):
        columns = TERMINAL if all_columns is SPEED else all_columns
        shown = Table(title=title, title_justify="left")
        for name in columns:
            is_text = name == "method"
            shown.add_column(name, no_wrap=is_text, justify="left" if is_text else "right")
        for row in group:
            shown.add_row(*(cell(row) for cell in columns.values()))
        console.print(shown)
    for legend in (SPEED_LEGEND, ROUND_LEGEND):
        console.print(legend, style="dim", highlight=False)


def markdown(
    rows: Sequence[Row], left_out: Sequence[str] = (), compared: Sequence[Comparison] = ()
) -> str:
    """The results as Markdown: matrices, comparison with the best strategy, omissions, tables."""
    parts = [markdown_table(*matrix) for matrix in matrices(rows)]
    parts += _against_best(compared)
    if left_out:
        parts.append("\n".join(["Not measured:", "", *(f"- {entry}" for entry in left_out)]))
    for title, columns, group in tables(rows):
        lines = [[cell(row) for cell in columns.values()] for row in group]
        parts.append(markdown_table(title, list(columns), lines))
    return "\n\n".join([*parts, SPEED_LEGEND, ROUND_LEGEND]) + "\n"


def page(results: Results) -> str:
    """The whole page that belongs to a record."""
    return markdown(results.rows, results.left_out, comparisons(results.samples))


def _against_best(compared: Sequence[Comparison]) -> list[str]:
    parts = []
    for profile in dict.fromkeys(found.profile for found in compared):
        lines = [
            [cell(found) for cell in AGAINST_BEST.values()]
            for found in compared
            if found.profile == profile
        ]
        title = f"against the best single strategy, {PROFILES[profile].title}"
        parts.append(markdown_table(title, list(AGAINST_BEST), lines))
    return [*parts, AGAINST_BEST_LEGEND] if parts else []


def markdown_table(title: str, names: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table under its title; the first column is text, the others are figures."""
    return f"**{title}**\n\n{untitled_table(names, lines)}"


def untitled_table(names: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table without a title; the first column is text, the others are figures."""
    head = [f"| {' | '.join(names)} |", "|---|" + "---:|" * (len(names) - 1)]
    return "\n".join([*head, *(f"| {' | '.join(line)} |" for line in lines)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="JSON file that benchmarks.run wrote")
    sys.stdout.write(page(Results.read(parser.parse_args(arguments).results)))


if __name__ == "__main__":
    run_command(main)
