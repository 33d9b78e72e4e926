"""Files of tokens: complete or absent."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int16]


def write(file: Path, tokens: Tokens) -> None:
    """Writes a file beside `file`, then renames it, so that a kill leaves the previous one."""
    half = file.with_suffix(".part")
    with half.open("wb") as stream:
        np.save(stream, tokens)
    os.replace(half, file)


def read(file: Path, by: str) -> Tokens:
    """The tokens in a file. Raises FileNotFoundError if `python -m by` has not been run."""
    if not file.exists():
        raise FileNotFoundError(f"{file} is not there: run python -m {by} first")
    tokens: Tokens = np.load(file)
    return tokens
