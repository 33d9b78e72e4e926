"""Speeds over plain decoding, as records have them: one figure a method and cell."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.settings import RESULTS

# A workload and a temperature.
Cell = tuple[str, float]


@cache
def read_record(name: str) -> Mapping[str, Any]:
    """A file of `results`, by its name without suffix."""
    content: Mapping[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


@dataclass(frozen=True, slots=True)
class Speeds:
    """How many times as fast as plain decoding methods are, by method and cell."""

    ratios: Mapping[tuple[str, Cell], float]

    @classmethod
    def of(cls, samples: Iterable[Mapping[str, Any]]) -> Speeds:
        """All runs of a cell together: the time that plain decoding took over what they took."""
        plain: defaultdict[tuple[str, Cell], float] = defaultdict(float)
        own: defaultdict[tuple[str, Cell], float] = defaultdict(float)
        for sample in samples:
            if sample["tokens_per_second"]:
                key = sample["method"], (sample["workload"], sample["temperature"])
                # Every run has as many tokens: what counts of a time is what it is for one.
                plain[key] += sample["ratio"] / sample["tokens_per_second"]
                own[key] += 1 / sample["tokens_per_second"]
        return cls({key: plain[key] / own[key] for key in own})

    @classmethod
    def measured(cls, record: str, profile: str, *, prompts_of: str | None = None) -> Speeds:
        """Of a record; with `prompts_of` only with the prompts that this other one has, too."""
        files = {sample["file"] for sample in read_record(prompts_of or record)["samples"]}
        return cls.of(
            sample
            for sample in read_record(record)["samples"]
            if sample["profile"] == profile and sample["file"] in files
        )

    @classmethod
    def in_virtual_time(cls, record: str, profile: str) -> Speeds:
        """What `benchmarks.simulate` found."""
        cells = [cell for cell in read_record(record)["cells"] if cell["profile"] == profile]
        return cls({(c["method"], (c["workload"], c["temperature"])): c["ratio"] for c in cells})

    @property
    def methods(self) -> list[str]:
        """All of them, in the record's order."""
        return list(dict.fromkeys(method for method, _ in self.ratios))

    def mean(self, method: str, cells: Sequence[Cell]) -> float | None:
        """Geometric mean over cells; None where the method was not measured in each."""
        known = [self.ratios.get((method, cell)) for cell in cells]
        found = [ratio for ratio in known if ratio is not None]
        if len(found) < len(cells):
            return None
        return statistics.geometric_mean(found)
