"""Generates the tables of docs/metrics.md from the code.

`python -m tests.contract.metrics_page` rewrites them; a test checks that they are fresh.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client.metrics import MetricWrapperBase

from draftloop.metrics import Live
from tests.contract.repository import ROOT
from tests.contract.written_page import WrittenPage

# Modules that declare metrics, by their heading on the page.
MODULES = {
    "Orchestrator": "orchestrator.metrics",
    "Drafter and verifier": "draftloop.runtime.metrics",
    "Drafter": "drafter_service.metrics",
    "Orchestrator and drafter: phrases": "phrase_store.metrics",
    "Every role": "draftloop.rpc.metrics",
    "Every process": "draftloop.metrics",
}
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}


@dataclass(frozen=True)
class Declared:
    """One metric as the page shows it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str

    def series(self) -> set[str]:
        """The names that a query may use."""
        if self.kind == "histogram":
            return {self.name + suffix for suffix in SUFFIXES["histogram"]}
        return {self.name}


def declared(module: str) -> list[Declared]:
    """The metrics that a module declares, in its order."""
    values = vars(importlib.import_module(module)).values()
    collectors = [each for each in values if isinstance(each, MetricWrapperBase | Live)]
    own = [each for each in collectors if not getattr(each, "_labelvalues", ())]  # no children
    return [metric for collector in own for metric in _metrics(collector)]


def _metrics(collector: MetricWrapperBase | Live[Any]) -> Iterator[Declared]:
    for family in collector.collect():
        # A family made for one scrape has its labels; for the library's own the metric has them.
        names: Any = getattr(family, "_labelnames", None) or getattr(collector, "_labelnames", ())
        name = family.name + ("_total" if family.type == "counter" else "")
        yield Declared(name, family.type, tuple(names), family.documentation)


def every_metric() -> list[Declared]:
    """The metrics of all modules."""
    return [metric for module in MODULES.values() for metric in declared(module)]


def table(heading: str, metrics: list[Declared]) -> str:
    """A table with one row per metric."""
    rows = [f"### {heading}\n", "| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |")
    return "\n".join(rows)


def tables() -> list[str]:
    """One table per module."""
    return [table(heading, declared(module)) for heading, module in MODULES.items()]


PAGE = WrittenPage(ROOT / "docs" / "metrics.md", {"metrics": tables})

if __name__ == "__main__":
    PAGE.write()
