"""Results as a picture: tokens per second by method, one panel per profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display needed

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from benchmarks.results import Row  # noqa: E402
from benchmarks.systems import METHODS, PROFILES  # noqa: E402

COLOURS = {"draftloop": "#1b7f5c", "transformers": "#8a8f98"}
FADED = 0.4
PANEL_WIDTH, PANEL_HEIGHT = 6.2, 4.2
RC = {"svg.hashsalt": "draftloop", "font.size": 10, "axes.spines.top": False,
      "axes.spines.right": False}  # fmt: skip


def draw(rows: Sequence[Row], file: Path) -> None:
    """Writes the picture; its format follows the file's suffix."""
    profiles = list(dict.fromkeys(row.profile for row in rows))
    with pyplot.rc_context(RC):
        figure, panels = pyplot.subplots(
            1, len(profiles), figsize=(PANEL_WIDTH * len(profiles), PANEL_HEIGHT), squeeze=False
        )
        for axes, profile in zip(panels[0], profiles, strict=True):
            _panel(axes, [row for row in rows if row.profile == profile])
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
    names = [f"T = {t:g}" if t else "greedy" for t in temperatures]
    shades = " (full colour), ".join(names) + (" (faded)" if len(names) > 1 else "")
    axes.set_xlabel(f"tokens/s (ratio to our plain decoding); {shades}")
    axes.set_title(PROFILES[rows[0].profile].title, fontsize=11)
