"""Results as a picture: tokens per second by method, one panel per profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display needed

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402

from benchmarks.results import Row  # noqa: E402
from benchmarks.systems import METHODS, PROFILES  # noqa: E402

COLOURS = {"draftloop": "#1b7f5c", "transformers": "#8a8f98"}
NEUTRAL = "#444444"
FADED = 0.4
PANEL_WIDTH, PANEL_HEIGHT = 6.2, 4.2
RC: dict[Any, Any] = {
    "svg.hashsalt": "draftloop",  # the same results give the same file
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(rows: Sequence[Row], file: Path) -> None:
    """Writes the picture; its format follows the file's suffix."""
    panels_of = list(dict.fromkeys((row.profile, row.workload) for row in rows))
    with pyplot.rc_context(RC):
        figure, panels = pyplot.subplots(
            1, len(panels_of), figsize=(PANEL_WIDTH * len(panels_of), PANEL_HEIGHT), squeeze=False
        )
        for axes, cell in zip(panels[0], panels_of, strict=True):
            _panel(axes, [row for row in rows if (row.profile, row.workload) == cell])
        figure.tight_layout()
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
        pyplot.close(figure)


def _panel(axes: Axes, rows: Sequence[Row]) -> None:
    methods = list(dict.fromkeys(row.method for row in rows))
    temperatures = list(dict.fromkeys(row.temperature for row in rows))
    height = 0.8 / len(temperatures)
    for row in rows:
        turn = temperatures.index(row.temperature)
        place = methods.index(row.method) + (turn - (len(temperatures) - 1) / 2) * height
        axes.barh(
            place,
            row.tokens_per_second,
            height=height,
            color=COLOURS[METHODS[row.method].system],
            alpha=FADED if turn else 1,
        )
        label = f" {row.tokens_per_second:.0f} ({row.ratio:.2f}x)"
        axes.text(row.tokens_per_second, place, label, va="center", fontsize=8)
    axes.set_yticks(range(len(methods)), methods)
    axes.invert_yaxis()
    axes.margins(x=0.22)
    shades = [f"T = {t:g}" if t else "greedy" for t in temperatures]
    axes.legend(
        [Patch(color=NEUTRAL, alpha=FADED if turn else 1) for turn in range(len(shades))],
        shades,
        loc="lower right",
        frameon=False,
    )
    axes.set_xlabel("tokens/s (ratio to our plain decoding)")
    axes.set_title(f"{rows[0].workload}, {PROFILES[rows[0].profile].title}", fontsize=11)
