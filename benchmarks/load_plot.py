"""Throughput by the number of requests at a time, a line per strategy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from matplotlib import pyplot
from matplotlib.ticker import ScalarFormatter

from benchmarks.figure import RC, save

SIZE = (6.4, 4.0)


class Point(Protocol):
    """What is drawn of a row."""

    @property
    def sessions(self) -> int:
        """Requests at a time."""

    @property
    def strategy(self) -> str:
        """What the line is named after."""

    @property
    def tokens_per_second(self) -> float:
        """Of all of them together."""


def draw(title: str, points: Sequence[Point], file: Path) -> None:
    """Writes the picture."""
    with pyplot.rc_context(RC):
        figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
        for strategy in dict.fromkeys(point.strategy for point in points):
            line = [point for point in points if point.strategy == strategy]
            axes.plot(
                [point.sessions for point in line],
                [point.tokens_per_second for point in line],
                marker="o",
                label=strategy,
            )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.set_xticks(sorted({point.sessions for point in points}))
        axes.set_ylim(bottom=0)
        axes.set(xlabel="requests at a time", ylabel="tokens/s of all together", title=title)
        axes.legend(frameon=False)
        save(figure, file)
