"""Calibration for compiled loops: the functions of `draftloop.calibration` themselves."""

from __future__ import annotations

from draftloop import calibration
from draftloop.runtime.compiling import compilable

bucket = compilable(calibration.bucket)
pooled_cell = compilable(calibration.pooled_cell)
cell_of = compilable(calibration.cell_of)
count = compilable(calibration.count)
estimate = compilable(calibration.estimate)
correct = compilable(calibration.correct)
