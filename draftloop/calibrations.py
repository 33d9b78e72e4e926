"""What a process's estimates are worth, learned over all of its sessions."""

from __future__ import annotations

from collections import defaultdict

from draftloop.calibration import Calibration

STEP = 0.25


def step_of(temperature: float) -> int:
    """Which temperatures are about the same; the highest ones all are."""
    return min(round(temperature / STEP), 8)


class Calibrations:
    """One calibration for every quarter of temperature: noise decides how often models agree."""

    def __init__(self) -> None:
        self._by_step: defaultdict[int, Calibration] = defaultdict(Calibration)

    def of(self, temperature: float) -> Calibration:
        """The one that sessions of about this temperature share."""
        return self._by_step[step_of(temperature)]
