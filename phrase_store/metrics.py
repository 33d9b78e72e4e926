"""Metrics of a process's phrases and of its connection to the log, summed over all namespaces.

There is no label per namespace, because namespaces contain tenants' names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import Counter
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from draftloop.metrics import REGISTRY, Live
from draftloop.tree import TokenSource

if TYPE_CHECKING:
    from phrase_store.store import PhraseStore

QUERIES = Counter(
    "draftloop_phrase_queries_total",
    "Times that a request asked its phrases, its own text and recycled successors for a draft.",
    registry=REGISTRY,
)
HITS = Counter(
    "draftloop_phrase_hits_total",
    "Queries that were answered, by what had an answer; one query may count for several sources.",
    ["source"],
    registry=REGISTRY,
)
_HIT = {source: HITS.labels(source.name.lower()) for source in TokenSource}

COUNTS = {
    "published": ("phrases_published", "Phrases written to the log."),
    "dropped": (
        "phrases_dropped",
        "Phrases not written: the log was gone or slow, or their namespace was evicted.",
    ),
    "received": ("phrases_received", "Phrases of other processes, received through the log."),
    "records_read": ("phrase_records_read", "Records read from the log, own ones included."),
    "skipped": ("phrase_records_skipped", "Records of the log that are foreign or damaged."),
    "failures": ("phrase_log_failures", "Calls to the log that failed."),
    "evictions": ("phrase_evictions", "Entries evicted to make room for others."),
}
LEVELS = {
    "namespaces": ("phrase_namespaces", "Namespaces (a model and a tenant) in use."),
    "entries": ("phrase_entries", "Continuations known."),
    "bytes": (
        "phrase_bytes",
        "Memory that the indexes use; tables of recycled successors are not counted.",
    ),
    "waiting": ("phrases_waiting", "Phrases to be written to the log."),
    "replaying": ("phrase_namespaces_replaying", "Namespaces still replaying the log."),
    "open_breakers": (
        "phrase_breakers_open",
        "Namespaces whose last calls to the log failed: the circuit breaker is open.",
    ),
    "log_age_s": (
        "phrase_log_age_seconds",
        "Seconds since the log was last read, in the namespace where that is longest ago. "
        "A healthy one is read at least every other second.",
    ),
}


def observe_query(sources: Iterable[TokenSource]) -> None:
    """Counts a query and the sources that answered it."""
    QUERIES.inc()
    for source in set(sources):
        _HIT[source].inc()


def _stores(stores: Sequence[PhraseStore]) -> Iterator[Metric]:
    figures = [store.figures() for store in stores]
    for name, (metric, meaning) in COUNTS.items():
        counter = CounterMetricFamily(f"draftloop_{metric}", meaning)
        if figures:
            counter.add_metric([], sum(getattr(each, name) for each in figures))
        yield counter
    for name, (metric, meaning) in LEVELS.items():
        gauge = GaugeMetricFamily(f"draftloop_{metric}", meaning)
        if figures:
            together = max if name == "log_age_s" else sum
            gauge.add_metric([], together(getattr(each, name) for each in figures))
        yield gauge


STORES: Live[PhraseStore] = Live(_stores)
