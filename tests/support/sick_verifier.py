"""`python -m tests.support.sick_verifier`: a verifier whose forwards fail while it is `sick`.

That is as long as a file of that name lies beside its `--address-file`.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftloop.runtime.model import LanguageModel

SICK = "sick"


def _failing(method: Callable[..., Any], sick: Path) -> Callable[..., Any]:
    def failing(*arguments: Any) -> Any:
        if sick.exists():
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return method(*arguments)

    return failing


if __name__ == "__main__":
    place = Path(sys.argv[sys.argv.index("--address-file") + 1]).with_name(SICK)
    for name in ("forward", "run"):
        setattr(LanguageModel, name, _failing(getattr(LanguageModel, name), place))
    runpy.run_module("verifier_service", run_name="__main__")
