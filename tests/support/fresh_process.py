"""Runs code in a Python process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from draftloop.config import REPOSITORY


def output_of(code: str, **environment: str) -> str:
    """What the code prints, stripped; fails the test, with its errors, if the process fails."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()
