"""Picture of estimated and real acceptance: one panel per source of drafted tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import colormaps, pyplot
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from benchmarks.calibration import Estimates
from benchmarks.figure import RC, save

PANELS_PER_LINE = 3
PANEL = 4.2
DIAGONAL = "#444444"
# Area of a point in square points: proportional to its number of nodes, within visible limits.
MIN_AREA, MAX_AREA, AREA_PER_NODE = 12.0, 240.0, 0.4
MARKERS = "osD^vPX*<>"


def draw(entries: Sequence[Estimates], file: Path) -> None:
    """Writes the picture; for points on the diagonal, the estimates are exact."""
    sources = list(dict.fromkeys(entry.source for entry in entries))
    methods = list(dict.fromkeys(entry.method for entry in entries))
    across = min(PANELS_PER_LINE, len(sources))
    down = -(-len(sources) // across)
    with pyplot.rc_context(RC):
        figure, panels = pyplot.subplots(
            down, across, figsize=(PANEL * across, PANEL * down + 0.9), squeeze=False,
            layout="constrained",
        )  # fmt: skip
        for axes, source in zip(panels.flat, sources, strict=False):
            _panel(axes, source, [e for e in entries if e.source == source], methods)
        for axes in panels.flat[len(sources) :]:
            axes.set_visible(False)
        handles = [
            Line2D([], [], linestyle="", marker=_marker(place), color=_colour(place))
            for place in range(len(methods))
        ]
        figure.legend(handles, methods, loc="outside lower center", ncols=across + 1, frameon=False)
        figure.suptitle(
            "accepted share of the verified nodes: a point per cell, its area their number"
        )
        save(figure, file)


def _panel(axes: Axes, source: str, entries: Sequence[Estimates], methods: Sequence[str]) -> None:
    axes.plot([0, 1], [0, 1], color=DIAGONAL, linewidth=0.8, linestyle=":")
    for entry in entries:
        place = methods.index(entry.method)
        axes.scatter(
            entry.estimated_share,
            entry.real_share,
            s=min(MAX_AREA, max(MIN_AREA, AREA_PER_NODE * entry.drafted)),
            marker=_marker(place),
            color=_colour(place),
            alpha=0.7,
            clip_on=False,  # shares of 0 and 1 lie on the frame
        )
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="estimated", ylabel="real")
    axes.set_title(source, fontsize=11)


def _colour(place: int) -> tuple[float, float, float, float]:
    return colormaps["tab10"](place % 10)


def _marker(place: int) -> str:
    return MARKERS[place % len(MARKERS)]
