"""Time of forwards on a GPU: without padded steps, compiled by torch, padded, replayed.

`python -m benchmarks.cuda_steps --out FILE` measures the bundled target and cost-inflated ones.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from draftloop.runtime.forward import Forward
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel
from models.layout import VERIFIER_DIR

SIZES = ("", "300M", "1B")
ROWS = (1, 8, 64, 512)
CONTEXTS = (128, 1024)
REPEATS, WARM_UPS = 15, 3


def load(size: str, **options: Any) -> LanguageModel:
    """The bundled target in bfloat16, cost-inflated to `size`."""
    return LanguageModel(
        ModelOptions(
            folder=VERIFIER_DIR, dtype="bfloat16", device="cuda", inflate=size, max_sessions=2,
            memory_share=0.3, **options,
        )
    )  # fmt: skip


def milliseconds(model: LanguageModel) -> dict[str, float]:
    """Median time of one session's forwards until the device has finished, by rows and context."""
    slot = model.acquire()
    model.forward([Forward(model, slot, [1] * max(CONTEXTS), logits_from=max(CONTEXTS) - 1)])
    taken = {}
    for context in CONTEXTS:
        for rows in ROWS:
            times = []
            for _ in range(REPEATS + WARM_UPS):
                slot.truncate(context)
                started = time.perf_counter()
                model.forward([Forward(model, slot, [1] * rows)])
                times.append(1e3 * (time.perf_counter() - started))
            name = f"{rows} rows behind {context}"
            taken[name] = round(statistics.median(times[WARM_UPS:]), 3)
    model.cache.release(slot)
    return taken


def measured(size: str, *, compiled: bool) -> dict[str, dict[str, float] | float]:
    """Times of one model in every way of running it, and the seconds to load it."""
    started = time.perf_counter()
    model = load(size)
    ways: dict[str, dict[str, float] | float] = {"start_s": time.perf_counter() - started}
    steps = model._lean.steps if model._lean is not None else None
    if steps is not None:
        ways["padded, replayed" if steps.recorded else "padded"] = milliseconds(model)
        if steps.recorded:
            steps._body, steps._head = steps._step.body, steps._step.head
            ways["padded"] = milliseconds(model)
    assert model._lean is not None
    model._lean.steps = None
    ways["without steps"] = milliseconds(model)
    del model, steps
    torch.cuda.empty_cache()
    if compiled:
        ways["compiled by torch"] = milliseconds(load(size, torch_compile=True))
        torch.cuda.empty_cache()
    return ways


def main() -> None:
    """Measures all sizes; writes the results so far after every model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--compiled", action="store_true", help="with --torch-compile as well")
    parser.add_argument("--sizes", default=",".join(SIZES), help="inflated to these")
    arguments = parser.parse_args()
    record: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "dtype": "bfloat16",
        "milliseconds": {},
    }  # fmt: skip
    for size in arguments.sizes.split(","):
        name = size or "bundled"
        record["milliseconds"][name] = measured(size, compiled=arguments.compiled)
        print(name, json.dumps(record["milliseconds"][name], indent=1), flush=True)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
