"""A model's cost curve while it runs: what was measured at the start, held to what forwards take.

Every forward compares its time with the curve's. The difference corrects the two points between
which it lies, and by a share all points at once, as when the machine has become slower. Corrections
are logarithms, so that twice and half weigh the same; old forwards fade by GAIN.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from draftloop.cost_line import CostLine, cost_line
from draftloop.model_info import CostPoint

GAIN = 0.1
# Part of a correction that all points share.
SHARED = 0.5
# No single forward, however late, counts for more than a factor of e^0.5.
MOST_SURPRISE = 0.5
# Forwards beyond the largest one measured, by this factor, say nothing about it: prefills.
REACH = 1.25
CONTEXT_STEP = 64


class CostCurve:
    """Corrected by the engine's thread, read by any: a reader may see half of one correction."""

    def __init__(self, measured: Sequence[CostPoint] = ()) -> None:
        self._measured = tuple(measured)
        self._common = 0.0
        self._own = [0.0] * len(self._measured)
        # forwards that corrected each point, and the start's measurement
        self._weights = [1.0] * len(self._measured)
        self._lines: dict[tuple[int, int], CostLine] = {}

    def observe(self, rows: int, context: int, batch: int, nanoseconds: int) -> None:
        """Takes in a forward of `batch` sessions with `rows` new tokens in all behind `context`."""
        if not self._measured:
            return
        line = self._lines.get((context // CONTEXT_STEP, batch)) or self._line(context, batch)
        last = len(line.rows) - 1
        if rows > REACH * line.rows[last]:
            return
        right = min(bisect_left(line.rows, rows), last)
        left = max(right - 1, 0)
        distance = line.rows[right] - line.rows[left]
        share = min(max((rows - line.rows[left]) / distance, 0.0), 1.0) if distance else 0.0
        own, low, high = self._own, line.points[left], line.points[right]
        expected = math.exp(self._common) * (
            (1 - share) * line.times[left] * math.exp(own[low])
            + share * line.times[right] * math.exp(own[high])
        )
        surprise = math.log(max(nanoseconds, 1) / expected)
        step = GAIN * min(max(surprise, -MOST_SURPRISE), MOST_SURPRISE)
        self._common += SHARED * step
        own[low] += (1 - SHARED) * (1 - share) * step
        own[high] += (1 - SHARED) * share * step
        self._weights[low] += 1 - share
        self._weights[high] += share

    def points(self) -> tuple[CostPoint, ...]:
        """The corrected curve; at one context and batch more tokens never cost less."""
        points: list[CostPoint] = []
        indices = range(len(self._measured))
        for _, members in groupby(indices, key=lambda index: _place(self._measured[index])):
            line = list(members)
            times = [self._corrected(index) for index in line]
            # what many forwards have shown stays as it is, and what none has gives way
            level = never_falling(times, [self._weights[index] for index in line])
            points += [
                replace(self._measured[index], forward_ns=round(time))
                for index, time in zip(line, level, strict=True)
            ]
        return tuple(points)

    @property
    def forward_seconds(self) -> float:
        """Corrected time of a forward with one token; 0 where none was measured."""
        return self._corrected(0) / 1e9 if self._measured else 0.0

    def _corrected(self, index: int) -> float:
        return self._measured[index].forward_ns * math.exp(self._common + self._own[index])

    def _line(self, context: int, batch: int) -> CostLine:
        line = cost_line(self._measured, context, batch)
        self._lines[context // CONTEXT_STEP, batch] = line
        return line


def _place(point: CostPoint) -> tuple[int, int]:
    return point.batch, point.context


def never_falling(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest values, by weighted squares, that never fall.

    Pool adjacent violators (Ayer et al. 1955).
    """
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, total, count = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            before, other, number = blocks.pop()
            mean = (before * other + mean * total) / (other + total)
            total, count = total + other, count + number
        blocks.append((mean, total, count))
    return [mean for mean, _, count in blocks for _ in range(count)]
