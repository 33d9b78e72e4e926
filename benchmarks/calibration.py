"""Estimated and real acceptance, by method and source of the drafted tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from benchmarks.outcome import Outcome, source_name


class Measured(Protocol):
    """The parts of a sample from which estimates are computed."""

    @property
    def profile(self) -> str: ...
    @property
    def workload(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def temperature(self) -> float: ...
    @property
    def outcome(self) -> Outcome: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Nodes of one source in one cell of the matrix, summed over its runs.

    `expected` is the sum over verified nodes of the estimated probability of acceptance. If the
    estimates are right, it equals `accepted` except for chance.
    """

    profile: str
    workload: str
    temperature: float
    method: str
    source: str
    proposed: int
    drafted: int
    accepted: int
    expected: float

    @property
    def estimated_share(self) -> float:
        """Accepted share of the verified nodes according to the estimates."""
        return self.expected / self.drafted if self.drafted else 0.0

    @property
    def real_share(self) -> float:
        """Accepted share of the verified nodes as measured."""
        return self.accepted / self.drafted if self.drafted else 0.0


def estimates(samples: Iterable[Measured]) -> list[Estimates]:
    """One entry per cell, method and source with a verified node, ordered by first sample."""
    sums: dict[tuple[str, str, float, str, str], list[float]] = {}
    for sample in samples:
        cell = (sample.profile, sample.workload, sample.temperature, sample.method)
        for part in sample.outcome.sources:
            if part.drafted:
                total = sums.setdefault((*cell, source_name(part.source)), [0, 0, 0, 0.0])
                seen = (part.proposed, part.drafted, part.accepted, part.expected)
                total[:] = (old + new for old, new in zip(total, seen, strict=True))
    return [
        Estimates(
            profile=profile,
            workload=workload,
            temperature=temperature,
            method=method,
            source=source,
            proposed=int(proposed),
            drafted=int(drafted),
            accepted=int(accepted),
            expected=expected,
        )
        for (profile, workload, temperature, method, source), (
            proposed,
            drafted,
            accepted,
            expected,
        ) in sums.items()
    ]
