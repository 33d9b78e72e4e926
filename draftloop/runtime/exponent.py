"""A polynomial for powers of two, which processors can evaluate for whole vectors."""

from __future__ import annotations

# 2^f on [-1/2, 1/2], highest power first (minimax, error below 2e-7).
EXP2 = (
    1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2,
    2.402264791363012e-1, 6.931472028550421e-1, 1.0,
)  # fmt: skip
