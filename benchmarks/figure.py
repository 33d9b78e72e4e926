"""What the pictures share: style, and files that are equal for equal results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display needed

from matplotlib import pyplot  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

RC: dict[Any, Any] = {
    "svg.hashsalt": "draftloop",  # the same results give the same file
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def save(figure: Figure, file: Path) -> None:
    """Writes the picture and closes it; the file's suffix decides the format."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)
