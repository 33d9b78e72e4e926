"""Calibrations of a process, learned over all of its sessions."""

from __future__ import annotations

from collections import defaultdict

from draftloop.calibration import Calibration

STEP = 0.25


def step_of(temperature: float) -> int:
    """The temperature in steps of `STEP`; all temperatures from about 2 on are the same step."""
    return min(round(temperature / STEP), 8)


class Calibrations:
    """One calibration per step of temperature, since noise decides how often models agree."""

    def __init__(self) -> None:
        self._by_step: defaultdict[int, Calibration] = defaultdict(Calibration)

    def of(self, temperature: float) -> Calibration:
        """The calibration that sessions of about this temperature share."""
        return self._by_step[step_of(temperature)]
