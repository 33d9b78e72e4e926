"""Table of the comparison of servers: one row per cell and server."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.http_server import Answer


@dataclass(frozen=True, slots=True)
class Cell:
    """What a repetition continues, and how many requests at a time."""

    workload: str
    temperature: float
    requests: int


@dataclass(frozen=True, slots=True)
class Run:
    """The answers of one server to requests sent together, and the time until the last one."""

    seconds: float
    answers: Sequence[Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A server in a cell.

    `tokens_per_second`: of one request, after its first token. `ratio`: the reference's time for
    them divided by the server's. `together`: all requests' tokens per second, prompts included.
    `equal`: the share of greedy answers with the reference's text; None where texts are sampled.
    """

    workload: str
    temperature: float
    requests: int
    server: str
    runs: int
    first_token_ms: float
    tokens_per_second: float
    ratio: float
    together: float
    equal: float | None


def summed(measured: Sequence[tuple[Cell, Mapping[str, Run]]]) -> list[Row]:
    """One row for every cell and server; each repetition's first server is the reference."""
    by_cell: defaultdict[Cell, list[Mapping[str, Run]]] = defaultdict(list)
    for cell, runs in measured:
        by_cell[cell].append(runs)
    return [
        _row(cell, name, [runs[name] for runs in sets], [next(iter(r.values())) for r in sets])
        for cell, sets in by_cell.items()
        for name in sets[0]
    ]


def _row(cell: Cell, server: str, runs: Sequence[Run], reference: Sequence[Run]) -> Row:
    answers, others = _answers(runs), _answers(reference)
    equal = [one.text == other.text for one, other in zip(answers, others, strict=True)]
    tokens = sum(answer.tokens for answer in answers)
    return Row(
        workload=cell.workload,
        temperature=cell.temperature,
        requests=cell.requests,
        server=server,
        runs=len(runs),
        first_token_ms=round(1e3 * statistics.median(answer.first_s for answer in answers), 1),
        tokens_per_second=round((tokens - len(answers)) / _decoding(answers), 2),
        ratio=round(_decoding(others) / _decoding(answers), 4),
        together=round(tokens / sum(run.seconds for run in runs), 2),
        equal=None if cell.temperature else statistics.mean(equal),
    )


def _answers(runs: Sequence[Run]) -> list[Answer]:
    return [answer for run in runs for answer in run.answers]


def _decoding(answers: Sequence[Answer]) -> float:
    """Seconds after the first tokens, of all answers together."""
    return sum(answer.last_s - answer.first_s for answer in answers)


def page(rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    lines = [
        "| workload | T | at a time | server | first token ms | tokens/s | ratio | together "
        "| equal | n |",
        "|---|---:|---:|---|" + "---:|" * 6,
    ]
    lines += [
        f"| {row.workload} | {row.temperature:g} | {row.requests} | {row.server} "
        f"| {row.first_token_ms:.0f} | {row.tokens_per_second:.1f} | {row.ratio:.2f}x "
        f"| {row.together:.1f} | {'-' if row.equal is None else f'{row.equal:.0%}'} "
        f"| {row.runs} |"
        for row in rows
    ]
    lines.append(
        "\nfirst token: median. tokens/s: of one request, after its first token. ratio: the first "
        "server's time for these tokens divided by this one's. together: all requests' tokens per "
        "second, prompts included. equal: greedy answers with the first server's text. n: runs."
    )
    return "\n".join(lines) + "\n"
