"""The verifier: owns the target model, verifies drafts and samples."""

from draftloop.openmp import prefer_passive_waiting

prefer_passive_waiting()  # here, because it must come before any import of torch
