"""Time of a forward by its number of rows, interpolated between a service's measured points."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from draftloop.model_info import CostPoint


@dataclass(frozen=True, slots=True)
class CostLine:
    """Time of a forward by its number of rows, which are the new tokens of all its sessions.

    `times[i]`, in nanoseconds, belongs to `rows[i]` and comes from point `points[i]` of the curve.
    """

    context: int
    batch: int
    rows: tuple[int, ...]
    times: tuple[float, ...]
    points: tuple[int, ...]

    def nanoseconds(self, rows: float) -> float:
        """Expected time: linear between points, proportional beyond them; 1.0 without points."""
        if not self.rows:
            return 1.0
        right = bisect_left(self.rows, rows)
        if right == 0:
            return self.times[0]
        if right == len(self.rows):
            return self.times[-1] * rows / max(self.rows[-1], 1)
        left = right - 1
        share = (rows - self.rows[left]) / (self.rows[right] - self.rows[left])
        return self.times[left] + share * (self.times[right] - self.times[left])


def cost_line(curve: Sequence[CostPoint], context: int | None = None, batch: int = 1) -> CostLine:
    """The measured line nearest to a context and a number of sessions.

    `context` None means the context with the most points. Long contexts and batches are measured at
    few sizes; beyond the largest of these, the line continues like the one with the most points,
    scaled so that the two meet.
    """
    lines = _measured_lines(curve)
    if not lines:
        return CostLine(context or 0, batch, (), (), ())
    fullest = max(lines, key=lambda line: len(line.rows))
    wanted = fullest.context if context is None else context
    nearest = min(
        lines, key=lambda line: (abs(math.log(line.batch / batch)), abs(line.context - wanted))
    )
    return _lengthened(nearest, fullest)


def _measured_lines(curve: Sequence[CostPoint]) -> list[CostLine]:
    def place(index: int) -> tuple[int, int]:
        return curve[index].batch, curve[index].context

    by_place = groupby(sorted(range(len(curve)), key=place), key=place)
    lines = []
    for (batch, context), indices in by_place:
        chosen = sorted(indices, key=lambda index: curve[index].tokens)
        lines.append(_line(context, batch, [(curve[at], at) for at in chosen]))
    return lines


def _line(context: int, batch: int, points: Iterable[tuple[CostPoint, int]]) -> CostLine:
    named = [(point.tokens * batch, point.forward_ns, at) for point, at in points]
    rows, times, indices = zip(*named, strict=True)
    return CostLine(context, batch, rows, times, indices)


def _lengthened(line: CostLine, fullest: CostLine) -> CostLine:
    last = line.rows[-1]
    start = bisect_left(fullest.rows, last + 1)
    ratio = line.times[-1] / max(fullest.nanoseconds(last), 1.0)
    return CostLine(
        line.context,
        line.batch,
        line.rows + fullest.rows[start:],
        line.times + tuple(time * ratio for time in fullest.times[start:]),
        line.points + fullest.points[start:],
    )
