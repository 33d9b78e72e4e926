"""The drafter: owns the draft model and the drafting strategies."""

from draftloop.openmp import prefer_passive_waiting

prefer_passive_waiting()  # here, because it must come before any import of torch
