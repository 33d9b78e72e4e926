"""What sessions of the same strategy, model and temperature learn together."""

from __future__ import annotations

from dataclasses import dataclass, field

from drafter_service.ways import Guessing, Ways
from drafter_service.weighing import Weighing
from draftloop.calibration import Calibration


@dataclass(slots=True)
class Experience:
    """How reliable estimates are, and which way of drafting pays.

    `calibration`: of what the draft model proposes. `reviews`: of what other sources offered and
    the draft model reviewed. `ways`: which of the draft models draft. `guessing`: whether their
    forwards check guesses.
    """

    calibration: Calibration = field(default_factory=Calibration)
    reviews: Weighing = field(default_factory=Weighing)
    ways: Ways = field(default_factory=Ways)
    guessing: Guessing = field(default_factory=Guessing)
