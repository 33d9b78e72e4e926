"""What the metrics of all roles share: one registry per process, names, buckets, live objects.

Names are vLLM's, with our prefix, where vLLM has the same concept. No label holds a value that a
client chose: no request ids, no tenants, no addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar
from weakref import WeakSet

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from draftloop import __version__

Thing = TypeVar("Thing")

REGISTRY = CollectorRegistry(auto_describe=True)

# Upper bounds in seconds: for rounds and their parts, and for requests and their parts.
ROUND_BUCKETS = (
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.5, 10.0,
)  # fmt: skip
REQUEST_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0,
)  # fmt: skip
TOKEN_BUCKETS = tuple(float(1 << power) for power in range(15))  # up to 16384


class Live(Collector, Generic[Thing]):
    """Metrics that are read from live objects when they are collected, and cost nothing otherwise.

    Objects are held weakly. Without any there are no samples, but the families are still listed.
    """

    def __init__(self, read: Callable[[Sequence[Thing]], Iterable[Metric]]) -> None:
        self._read = read
        self._things: WeakSet[Thing] = WeakSet()
        REGISTRY.register(self)

    def watch(self, thing: Thing) -> None:
        """Includes the object for as long as it lives, or until `forget`."""
        self._things.add(thing)

    def forget(self, thing: Thing) -> None:
        """Excludes the object, if it was included."""
        self._things.discard(thing)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics; called by the registry."""
        yield from self._read(list(self._things))


def build_info(_: Sequence[object]) -> Iterator[Metric]:
    """The running version, as a label."""
    family = GaugeMetricFamily(
        "draftloop_build_info", "1, with the version that runs as its label.", labels=["version"]
    )
    family.add_metric([__version__], 1)
    yield family


BUILD: Live[object] = Live(build_info)
PROCESS = ProcessCollector(registry=REGISTRY)
