"""Times `PackedLinear` against torch's bfloat16 and float32 kernels on this CPU.

    python -m benchmarks.cpu_linear [--threads N] [--runs N]

The first table streams matrices that fit in no cache, as a large verifier does. The second uses the
small matrices of the bundled models. The kernels take turns, and each call counts with its fastest
run, so that other processes on the machine disturb the comparison little.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from draftloop.runtime.cpu_linear import PackedLinear

Kernel = Callable[[Tensor], Tensor]

LARGE_SHAPE, LARGE_COPIES = (4096, 1024), 12
LARGE_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 256, 512)
SMALL_SHAPES = ((384, 384), (1024, 384), (384, 1024), (128, 128), (4096, 384), (4096, 128))
SMALL_ROWS = (1, 8)
SMALL_REPEATS = 20
COLUMNS = ("torch bf16", "torch f32", "packed bf16", "packed f32")


def kernels(shape: tuple[int, int]) -> list[Kernel]:
    """One multiplication by a random matrix per column; each takes bfloat16 rows."""
    weight = torch.randn(shape).bfloat16()
    wide = weight.float()
    packed, packed_wide = PackedLinear(weight), PackedLinear(wide)
    return [
        lambda x: linear(x, weight),
        lambda x: linear(x.float(), wide),
        packed,
        lambda x: packed_wide(x.float()),
    ]


def fastest(copies: Sequence[Sequence[Kernel]], x: Tensor, runs: int, repeats: int) -> list[float]:
    """Milliseconds per column for one pass over all copies; the columns alternate."""
    best = [[float("inf")] * len(COLUMNS) for _ in copies]
    for _ in range(runs):
        for column in range(len(COLUMNS)):
            for copy, times in zip(copies, best, strict=True):
                start = time.perf_counter()
                for _ in range(repeats):
                    copy[column](x)
                times[column] = min(times[column], (time.perf_counter() - start) / repeats)
    return [1000 * sum(times[column] for times in best) for column in range(len(COLUMNS))]


def print_table(label: str, rows: Sequence[tuple[str, list[float]]], unit: str) -> None:
    print(f"\n| {label} | " + " | ".join(f"{column}, {unit}" for column in COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for name, times in rows:
        print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in times) + " |")


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    outputs, depth = LARGE_SHAPE
    copies = [kernels(LARGE_SHAPE) for _ in range(LARGE_COPIES)]
    large = []
    for rows in LARGE_ROWS:
        x = torch.randn(rows, depth).bfloat16()
        runs = max(2, arguments.runs if rows <= 32 else arguments.runs // 4)
        large.append((str(rows), fastest(copies, x, runs, repeats=1)))
    print_table(f"rows, {LARGE_COPIES} of {outputs}x{depth}", large, "ms")
    del copies

    small = []
    for outputs, depth in SMALL_SHAPES:
        matrix = [kernels((outputs, depth))]
        for rows in SMALL_ROWS:
            x = torch.randn(rows, depth).bfloat16()
            times = fastest(matrix, x, arguments.runs, SMALL_REPEATS)
            name = f"{outputs}x{depth}, {rows} row{'s' if rows > 1 else ''}"
            small.append((name, [1000 * value for value in times]))
    print_table("matrix", small, "µs")


if __name__ == "__main__":
    main()
