"""Compares `fused` with the best single strategy of each cell of the record.

The best of eight strategies in a record owes part of its lead to chance. So the best one is also
chosen with one half of the prompts and compared on the other half, over many random halvings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.drawings import DRAWINGS, by_prompt, ratio_within
from benchmarks.systems import COMPARED, METHODS
from draftloop.runtime.records import Floats
from draftloop.speculation import FUSED

OURS = [name for name in COMPARED if METHODS[name].system == "draftloop"]
JOINED = [name for name in OURS if METHODS[name].speculation.strategy == FUSED]
SINGLE = [name for name in OURS if name not in JOINED]
# With fewer prompts, half of them are too few to choose with.
MIN_PROMPTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How many times as fast `method` is as the best single strategy of a cell.

    `ratio`: compared with `best`, the fastest strategy over the whole record. In nine of ten
    bootstrap samples over prompts it lies between `least` and `most`. `apart`: compared with the
    strategy that was fastest on the other half of the prompts; a geometric mean over halvings.
    """

    profile: str
    workload: str
    temperature: float
    method: str
    best: str
    runs: int
    ratio: float
    least: float
    most: float
    apart: float


def comparisons(samples: Sequence[Mapping[str, Any]]) -> list[Comparison]:
    """One comparison per cell and joined strategy, from the samples of a record.

    Only repetitions in which every method ran count; cells with too few prompts are left out.
    """
    cells: defaultdict[tuple[str, str, float], list[Mapping[str, Any]]] = defaultdict(list)
    for sample in samples:
        if sample["tokens_per_second"]:
            cells[sample["profile"], sample["workload"], sample["temperature"]].append(sample)
    return [found for cell in cells.values() for found in _comparisons_of_cell(cell)]


def _comparisons_of_cell(samples: Sequence[Mapping[str, Any]]) -> Iterator[Comparison]:
    seconds: defaultdict[str, dict[tuple[str, int], float]] = defaultdict(dict)
    for sample in samples:
        per_token = 1 / sample["tokens_per_second"]
        seconds[sample["method"]][sample["file"], sample["seed"]] = per_token
    single, joined = ([name for name in names if name in seconds] for names in (SINGLE, JOINED))
    if not single or not joined:
        return
    chosen = [seconds[name] for name in (*single, *joined)]
    runs = [run for run in chosen[0] if all(run in times for times in chosen)]
    prompts = [file for file, _ in runs]
    if len(set(prompts)) < MIN_PROMPTS:
        return
    others = np.array([[seconds[name][run] for run in runs] for name in single])
    best = int(others.sum(axis=1).argmin())
    for name in joined:
        own = np.array([seconds[name][run] for run in runs])
        ratio, least, most = ratio_within(others[best], own, prompts)
        yield Comparison(
            profile=samples[0]["profile"],
            workload=samples[0]["workload"],
            temperature=samples[0]["temperature"],
            method=name,
            best=single[best],
            runs=len(runs),
            ratio=ratio,
            least=least,
            most=most,
            apart=_held_out_ratio(by_prompt(others, prompts), by_prompt(own, prompts)),
        )


def _held_out_ratio(others: Floats, own: Floats) -> float:
    """Mean ratio to the strategy that was fastest on the other half of the prompts (geometric)."""
    half = np.tile(np.arange(len(own)) < len(own) // 2, (DRAWINGS, 1))
    chooses = np.random.default_rng(0).permuted(half, axis=1)
    fastest = (chooses @ others.T).argmin(axis=1)
    counted = ~chooses @ others.T
    held_against = counted[np.arange(DRAWINGS), fastest]
    return float(np.exp(np.log(held_against / (~chooses @ own)).mean()))
