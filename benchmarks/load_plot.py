"""Picture of throughput by number of concurrent requests, one line per strategy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib import pyplot
from matplotlib.ticker import ScalarFormatter

from benchmarks.figure import RC, save

SIZE = (6.4, 4.0)


def draw(title: str, lines: Mapping[str, Mapping[int, float]], file: Path) -> None:
    """Writes the picture of tokens per second by strategy and number of concurrent requests."""
    with pyplot.rc_context(RC):
        figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
        for strategy, line in lines.items():
            axes.plot(list(line), list(line.values()), marker="o", label=strategy)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.set_xticks(sorted({sessions for line in lines.values() for sessions in line}))
        axes.set_ylim(bottom=0)
        axes.set(xlabel="requests at a time", ylabel="tokens/s of all together", title=title)
        axes.legend(frameon=False)
        save(figure, file)
