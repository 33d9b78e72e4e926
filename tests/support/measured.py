"""Reads figures from a process's metrics."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

PAGE_S = 30.0


def read_metric(address: str, name: str) -> float:
    """The sum of all samples with this name on the metrics page at `address`."""
    text = httpx.get(f"http://{address}/metrics", timeout=PAGE_S).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    )
