"""`python -m tests.support.sick_verifier`: a verifier whose forwards fail while it is `sick`.

It is sick as long as a file of that name exists beside its `--address-file`. If the file contains a
number, only forwards of texts with more tokens fail.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from draftloop.runtime.forward import Forward
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.prepared import Passes

SICK = "sick"


def _make_failing(method: Callable[..., Any], sick: Path) -> Callable[..., Any]:
    def failing(model: LanguageModel, forwards: Any) -> Any:
        if sick.exists() and _longest_text(forwards) > int(sick.read_text() or 0):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return method(model, forwards)

    return failing


def _longest_text(forwards: Passes | Sequence[Forward]) -> int:
    """Tokens of the longest text, including the new ones."""
    if isinstance(forwards, Passes):
        return forwards.slot.length + 1
    return max(forward.slot.length + forward.rows for forward in forwards)


if __name__ == "__main__":
    place = Path(sys.argv[sys.argv.index("--address-file") + 1]).with_name(SICK)
    for name in ("forward", "run"):
        setattr(LanguageModel, name, _make_failing(getattr(LanguageModel, name), place))
    runpy.run_module("verifier_service", run_name="__main__")
