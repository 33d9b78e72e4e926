"""Speeds relative to plain decoding in records: one figure per method and cell."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.settings import RESULTS

# Workload and temperature.
Cell = tuple[str, float]


@cache
def read_record(name: str) -> Mapping[str, Any]:
    """Contents of a file in `results`, given its name without suffix."""
    content: Mapping[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds relative to plain decoding, by method and cell."""

    ratios: Mapping[tuple[str, Cell], float]

    @classmethod
    def of(cls, samples: Iterable[Mapping[str, Any]]) -> Speeds:
        """From all runs of a cell together: time of plain decoding divided by the method's time."""
        plain: defaultdict[tuple[str, Cell], float] = defaultdict(float)
        own: defaultdict[tuple[str, Cell], float] = defaultdict(float)
        for sample in samples:
            if sample["tokens_per_second"]:
                key = sample["method"], (sample["workload"], sample["temperature"])
                # Every run has the same number of tokens, so times per token are summed.
                plain[key] += sample["ratio"] / sample["tokens_per_second"]
                own[key] += 1 / sample["tokens_per_second"]
        return cls({key: plain[key] / own[key] for key in own})

    @classmethod
    def measured(cls, record: str, profile: str, *, prompts_of: str | None = None) -> Speeds:
        """Speeds in a record; with `prompts_of`, only for prompts that this record has too.

        A file may be a prompt of one workload and not of another.
        """
        prompts = set(map(_prompt, read_record(prompts_of or record)["samples"]))
        return cls.of(
            sample
            for sample in read_record(record)["samples"]
            if sample["profile"] == profile and _prompt(sample) in prompts
        )

    @classmethod
    def in_virtual_time(cls, record: str, profile: str) -> Speeds:
        """Speeds in a record of `benchmarks.simulate`."""
        cells = [cell for cell in read_record(record)["cells"] if cell["profile"] == profile]
        return cls({(c["method"], (c["workload"], c["temperature"])): c["ratio"] for c in cells})

    @property
    def methods(self) -> list[str]:
        """All methods, in the record's order."""
        return list(dict.fromkeys(method for method, _ in self.ratios))

    def mean(self, method: str, cells: Sequence[Cell]) -> float | None:
        """Geometric mean over cells; None if the method was not measured in all of them."""
        known = [self.ratios.get((method, cell)) for cell in cells]
        found = [ratio for ratio in known if ratio is not None]
        if len(found) < len(cells):
            return None
        return statistics.geometric_mean(found)


def _prompt(sample: Mapping[str, Any]) -> tuple[str, str]:
    """The prompt of a run: its workload and file."""
    return sample["workload"], sample["file"]
