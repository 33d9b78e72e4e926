"""What sessions that are drafted alike learn together."""

from __future__ import annotations

from dataclasses import dataclass, field

from drafter_service.ways import TwoWays, Ways
from drafter_service.weighing import Weighing
from draftloop.calibration import Calibration


@dataclass(slots=True)
class Experience:
    """How far estimates are to be believed, and which way of drafting pays.

    `calibration`: of what the draft model proposes. `reviews`: of what other sources offered and it
    reviewed. `ways`: which of the draft models draft. `guessing`: whether guesses ride along in
    their forwards.
    """

    calibration: Calibration = field(default_factory=Calibration)
    reviews: Weighing = field(default_factory=Weighing)
    ways: Ways = field(default_factory=Ways)
    guessing: TwoWays = field(default_factory=TwoWays)
