"""Picture of one profile's results: speed relative to plain decoding, one panel per workload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.figure import RC, save
from benchmarks.results import Row
from benchmarks.systems import METHODS, PROFILES
from benchmarks.table import sampling

COLOURS = {"draftloop": "#1b7f5c", "transformers": "#8a8f98"}
NEUTRAL = "#444444"
FADED = 0.4
PANELS_PER_LINE = 2
PANEL_WIDTH, METHOD_HEIGHT, FRAME_HEIGHT = 7.0, 0.42, 1.2


def draw(rows: Sequence[Row], file: Path) -> None:
    """Writes the picture of one profile's rows; all panels share one axis, which starts at 0."""
    workloads = list(dict.fromkeys(row.workload for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    temperatures = list(dict.fromkeys(row.temperature for row in rows))
    across = min(PANELS_PER_LINE, len(workloads))
    down = -(-len(workloads) // across)
    size = (PANEL_WIDTH * across, (FRAME_HEIGHT + METHOD_HEIGHT * len(methods)) * down)
    with pyplot.rc_context(RC):
        figure, panels = pyplot.subplots(
            down, across, figsize=size, squeeze=False, sharex=True, layout="constrained"
        )
        for axes, workload in zip(panels.flat, workloads, strict=False):
            _panel(axes, [row for row in rows if row.workload == workload], temperatures)
        for axes in panels.flat[len(workloads) :]:
            axes.set_visible(False)
        panels.flat[0].set_xlim(0, 1.25 * max(row.most_ratio or row.ratio for row in rows))
        shades = [Patch(color=NEUTRAL, alpha=_alpha(t, temperatures)) for t in temperatures]
        names = [sampling(temperature) for temperature in temperatures]
        spread = Line2D([], [], color=NEUTRAL, linewidth=1)
        systems = list(dict.fromkeys(METHODS[method].system for method in methods))
        figure.legend(
            [*shades, spread, *(Patch(color=COLOURS[system]) for system in systems)],
            [*names, "least and most of single runs", *systems],
            loc="outside lower center",
            ncols=len(names) + 1 + len(systems),
            frameon=False,
        )
        figure.suptitle(f"speed over plain decoding: {PROFILES[rows[0].profile].title}")
        save(figure, file)


def _alpha(temperature: float, temperatures: Sequence[float]) -> float:
    return FADED if temperatures.index(temperature) else 1


def _panel(axes: Axes, rows: Sequence[Row], temperatures: Sequence[float]) -> None:
    methods = list(dict.fromkeys(row.method for row in rows))
    height = 0.8 / len(temperatures)
    for row in rows:
        turn = temperatures.index(row.temperature)
        place = methods.index(row.method) + (turn - (len(temperatures) - 1) / 2) * height
        axes.barh(
            place,
            row.ratio,
            height=height,
            color=COLOURS[METHODS[row.method].system],
            alpha=_alpha(row.temperature, temperatures),
        )
        most = row.most_ratio or row.ratio
        axes.plot([row.least_ratio or row.ratio, most], [place, place], color=NEUTRAL, linewidth=1)
        label = f" {row.ratio:.2f}x, {row.tokens_per_second:.0f}/s, n = {row.runs}"
        axes.text(max(most, row.ratio), place, label, va="center", fontsize=7)
    axes.axvline(1, color=NEUTRAL, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(methods)), methods)
    axes.invert_yaxis()
    axes.tick_params(labelbottom=True)
    axes.set_xlabel("speed over plain decoding (label: median, tokens/s, runs)")
    axes.set_title(rows[0].workload, fontsize=11)
