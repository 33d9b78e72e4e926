"""Table of a load benchmark: one row per number of concurrent requests and strategy."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.outcome import Outcome
from benchmarks.systems import PLAIN


@dataclass(frozen=True, slots=True)
class Run:
    """One set of requests with one strategy: the total time in seconds, and each outcome."""

    seconds: float
    outcomes: Sequence[Outcome]

    @property
    def tokens_per_second(self) -> float:
        """Rate over all clients together, including prompts and waiting."""
        return sum(len(outcome.token_ids) for outcome in self.outcomes) / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Medians over a strategy's runs; `ratio` is relative to the plain run of the same requests.

    `first_token_ms` and `per_token_ms` are medians over all requests, as a client sees them.
    """

    sessions: int
    strategy: str
    runs: int
    tokens_per_second: float
    ratio: float
    first_token_ms: float
    per_token_ms: float
    tokens_per_round: float
    nodes_per_round: float
    fallback: float
    equal: float


def summed(
    measured: Mapping[int, Sequence[Mapping[str, Run]]], strategies: Sequence[str]
) -> list[Row]:
    """One row for every number of sessions and strategy."""
    return [
        row(sessions, name, [runs[name] for runs in sets], [runs[PLAIN] for runs in sets])
        for sessions, sets in measured.items()
        for name in strategies
    ]


def row(sessions: int, strategy: str, runs: Sequence[Run], plain: Sequence[Run]) -> Row:
    """Summarizes runs, each compared with the plain run of the same requests."""
    pairs = list(zip(runs, plain, strict=True))
    outcomes = [outcome for run in runs for outcome in run.outcomes]
    rounds = sum(outcome.rounds for outcome in outcomes)
    decoded = sum(outcome.decoded for outcome in outcomes)
    per_token_s = [outcome.decode_s / max(1, outcome.decoded) for outcome in outcomes]
    return Row(
        sessions=sessions,
        strategy=strategy,
        runs=len(runs),
        tokens_per_second=round(statistics.median(run.tokens_per_second for run in runs), 2),
        ratio=round(
            statistics.median(one.tokens_per_second / other.tokens_per_second
                              for one, other in pairs), 4
        ),
        first_token_ms=round(1e3 * statistics.median(o.first_token_s for o in outcomes), 1),
        per_token_ms=round(1e3 * statistics.median(per_token_s), 2),
        tokens_per_round=round(decoded / rounds, 3),
        nodes_per_round=round(sum(o.drafted or 0 for o in outcomes) / rounds, 3),
        fallback=round(sum(o.fallback_rounds or 0 for o in outcomes) / rounds, 4),
        equal=statistics.mean(
            one.token_ids == other.token_ids
            for run, beside in pairs
            for one, other in zip(run.outcomes, beside.outcomes, strict=True)
        ),
    )  # fmt: skip


def page(title: str, rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    lines = [
        f"**many requests at a time, {title}**\n",
        "| at a time | strategy | tokens/s | ratio | first token ms | between ms | tokens/round "
        "| nodes/round | fallback | equal | n |",
        "|---:|---|" + "---:|" * 9,
    ]
    lines += [
        f"| {row.sessions} | {row.strategy} | {row.tokens_per_second:.1f} | {row.ratio:.2f}x "
        f"| {row.first_token_ms:.0f} | {row.per_token_ms:.1f} | {row.tokens_per_round:.2f} "
        f"| {row.nodes_per_round:.1f} | {row.fallback:.0%} | {row.equal:.0%} | {row.runs} |"
        for row in rows
    ]
    lines.append(
        "\ntokens/s: of all clients together, prompts included. ratio: to plain decoding of the "
        "same requests, as many at a time. first token, between: what one client waits for its "
        "first token and for each one after it. fallback: rounds without the drafter's answer. "
        "equal: answers with the same tokens as plain decoding. n: runs. Medians or shares."
    )
    return "\n".join(lines) + "\n"
