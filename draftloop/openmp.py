"""How idle worker threads wait; must be set before torch is imported."""

from __future__ import annotations

import os

# A thread that spins after a parallel region keeps the core from the other role's process.
PASSIVE_WAIT = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


def prefer_passive_waiting() -> None:
    """Lets idle OpenMP threads sleep; variables that the user has set are kept."""
    for name, value in PASSIVE_WAIT.items():
        os.environ.setdefault(name, value)
