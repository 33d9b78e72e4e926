"""Time to sample tokens, by sampling parameters: for the rows of a draft tree, and one alone.

`python -m benchmarks.sampling` prints medians. Logits are drawn at random and rounded to bfloat16
like a model's, so that many are equal; their noise was computed before.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from rich.console import Console
from rich.table import Table

from draftloop.request import SamplingParameters
from draftloop.runtime.sampling import Sampler

CPU = torch.device("cpu")
# Sizes of the vocabularies of the bundled pair, Llama 2 and Qwen 2.5.
VOCABULARIES = (4096, 32_000, 151_936)
ROWS = (1, 17)
SPREAD, TEMPERATURE = 3.0, 0.8
PROMPT = range(500)
REPEATS, WARM_UP = 30, 3
CASES: dict[str, dict[str, float]] = {
    "temperature alone": {},
    "top-p 0.95": {"top_p": 0.95},
    "top-k 50": {"top_k": 50},
    "min-p 0.05": {"min_p": 0.05},
    "top-k 50, top-p 0.95": {"top_k": 50, "top_p": 0.95},
    "repetition penalty 1.1": {"repetition_penalty": 1.1},
}


def milliseconds(vocabulary: int, rows: int, **parameters: float) -> float:
    """Median time to sample a token for every row."""
    chance = torch.Generator().manual_seed(vocabulary)
    logits = (torch.randn(rows, vocabulary, generator=chance) * SPREAD).bfloat16().float()
    sampling = SamplingParameters(temperature=TEMPERATURE, seed=1, **parameters)  # type: ignore[arg-type]
    sampler = Sampler(sampling, vocabulary, CPU)
    sampler.observe_prompt(PROMPT)
    positions, paths = range(rows), [[row] * min(row, 1) for row in range(rows)]
    sampler.prepare(0, rows)
    times = []
    for _ in range(REPEATS + WARM_UP):
        began = time.perf_counter()
        sampler.best(logits, positions, paths)
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times[WARM_UP:])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    table = Table(title="choosing tokens, milliseconds")
    table.add_column("parameters")
    for vocabulary in VOCABULARIES:
        for rows in ROWS:
            table.add_column(f"{vocabulary:,} tokens, {rows} rows", justify="right")
    for name, parameters in CASES.items():
        cells = [
            f"{milliseconds(vocabulary, rows, **parameters):.2f}"
            for vocabulary in VOCABULARIES
            for rows in ROWS
        ]
        table.add_row(name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
