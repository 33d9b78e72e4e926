"""A model's cost curve at run time: measured at startup, then corrected by every forward.

Each forward's time is compared with the curve. The difference corrects the two nearest points, and
partly all points, as when the whole machine has become slower. Corrections are logarithmic, so that
twice and half weigh the same. Old forwards fade by GAIN; corrections of sizes that no longer run
fade by DRIFT.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from draftloop.cost_line import cost_line
from draftloop.model_info import CostPoint

GAIN = 0.1
# Part of a correction that applies to all points.
SHARED = 0.5
# No single forward, however slow, counts for more than a factor of e^0.5.
MAX_SURPRISE = 0.5
# Every DRIFT_EVERY forwards, all points' own corrections move by DRIFT towards that of the latest
# forward. Otherwise sizes that look expensive because of a busy moment would not run again, and
# nothing would correct them.
DRIFT_EVERY, DRIFT = 16, 0.005
# Forwards larger than the largest measured one by more than this factor are ignored: prefills.
REACH = 1.25
# Contexts are distinguished in such steps; all beyond MAX_STEPS steps count as one.
CONTEXT_STEP, MAX_STEPS = 128, 16

Spot = tuple[int, int, float, float]
"""The points before and behind a forward, its share of the way, logarithm of its measured time."""


class CostCurve:
    """Corrected on the engine's thread; other threads may read it and see half a correction."""

    def __init__(self, measured: Sequence[CostPoint] = ()) -> None:
        self._measured = tuple(measured)
        self._common, self._forwards = 0.0, 0
        self._own = [0.0] * len(self._measured)
        # number of forwards that corrected each point, plus one for the measurement at startup
        self._weights = [1.0] * len(self._measured)
        self._most_rows = REACH * max(cost_line(self._measured).rows, default=0)
        self._spots: dict[tuple[int, int, int], Spot] = {}

    def observe(self, rows: int, context: int, batch: int, nanoseconds: int) -> None:
        """Records a forward of `batch` sessions: `rows` new tokens in all, after mean `context`."""
        if rows > self._most_rows:
            return
        # few enough to cache them all: this runs after every forward and must be fast
        key = rows, min(context // CONTEXT_STEP, MAX_STEPS), batch
        spot = self._spots.get(key) or self._find(key, context)
        low, high, share, logarithm = spot
        own, weights = self._own, self._weights
        expected = logarithm + self._common + (1 - share) * own[low] + share * own[high]
        surprise = math.log(nanoseconds or 1) - expected
        step = GAIN * min(max(surprise, -MAX_SURPRISE), MAX_SURPRISE)
        self._common += SHARED * step
        own[low] += (1 - SHARED) * (1 - share) * step
        own[high] += (1 - SHARED) * share * step
        weights[low] += 1 - share
        weights[high] += share
        self._forwards += 1
        if self._forwards % DRIFT_EVERY == 0:
            here = (1 - share) * own[low] + share * own[high]
            own[:] = [one + DRIFT * (here - one) for one in own]

    def _find(self, key: tuple[int, int, int], context: int) -> Spot:
        rows, _, batch = key
        line = cost_line(self._measured, context, batch)
        last = len(line.rows) - 1
        right = min(bisect_left(line.rows, rows), last)
        left = max(right - 1, 0)
        distance = line.rows[right] - line.rows[left]
        share = min(max((rows - line.rows[left]) / distance, 0.0), 1.0) if distance else 0.0
        time = (1 - share) * line.times[left] + share * line.times[right]
        spot = line.points[left], line.points[right], share, math.log(max(time, 1.0))
        self._spots[key] = spot
        return spot

    def points(self) -> tuple[CostPoint, ...]:
        """The corrected curve; at equal context and batch, more tokens never cost less."""
        points: list[CostPoint] = []
        indices = range(len(self._measured))
        for _, members in groupby(indices, key=lambda index: _place(self._measured[index])):
            line = list(members)
            times = [self._corrected(index) for index in line]
            # points that many forwards have confirmed hardly move, others give way
            level = isotonic_regression(times, [self._weights[index] for index in line])
            points += [
                replace(self._measured[index], forward_ns=round(time))
                for index, time in zip(line, level, strict=True)
            ]
        return tuple(points)

    @property
    def forward_seconds(self) -> float:
        """Corrected time of a forward with one token; 0 if none was measured."""
        return self._corrected(0) / 1e9 if self._measured else 0.0

    def _corrected(self, index: int) -> float:
        return self._measured[index].forward_ns * math.exp(self._common + self._own[index])


def _place(point: CostPoint) -> tuple[int, int]:
    return point.batch, point.context


def isotonic_regression(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest non-decreasing values, by weighted least squares.

    Isotonic regression by pool adjacent violators (Ayer et al. 1955).
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
