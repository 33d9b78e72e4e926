"""How far a ratio of summed times is to be trusted: bootstrap over repetitions."""

from __future__ import annotations

import numpy as np

from draftloop.runtime.records import Floats

DRAWINGS = 1000


def ratio_within(upper: Floats, lower: Floats) -> tuple[float, float, float]:
    """The ratio of the sums, and the middle nine tenths of it over as many repetitions, drawn with
    replacement.
    """
    drawn = np.random.default_rng(0).integers(len(lower), size=(DRAWINGS, len(lower)))
    ratios = upper[drawn].sum(axis=1) / lower[drawn].sum(axis=1)
    least, most = np.quantile(ratios, (0.05, 0.95))
    return float(upper.sum() / lower.sum()), float(least), float(most)
