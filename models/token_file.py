"""Files of tokens: whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int16]


def write(file: Path, tokens: Tokens) -> None:
    """Writes beside `file`, then renames over it: a kill leaves what was there before."""
    half = file.with_suffix(".part")
    with half.open("wb") as stream:
        np.save(stream, tokens)
    os.replace(half, file)


def read(file: Path, by: str) -> Tokens:
    """What was written. Raises FileNotFoundError where `python -m by` has not been run."""
    if not file.exists():
        raise FileNotFoundError(f"{file} is not there: run python -m {by} first")
    tokens: Tokens = np.load(file)
    return tokens
