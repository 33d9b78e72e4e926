"""Metrics of a model service: sessions, KV cache and forwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from draftloop.metrics import REGISTRY, REQUEST_BUCKETS, ROUND_BUCKETS, TOKEN_BUCKETS, Live

if TYPE_CHECKING:
    from draftloop.runtime.kv_cache import Slot
    from draftloop.runtime.prepared import Pass
    from draftloop.runtime.service import ModelHost

PREFILL_TOKENS = Counter(
    "draftloop_prefill_tokens_total",
    "Committed tokens that sessions were opened with, those of reopened sessions again.",
    registry=REGISTRY,
)
PREFIX_CACHE_QUERIES = Counter(
    "draftloop_prefix_cache_queries_total",
    "Of the tokens of draftloop_prefill_tokens_total, those of sessions that share prefixes.",
    registry=REGISTRY,
)
PREFIX_CACHE_HITS = Counter(
    "draftloop_prefix_cache_hits_total",
    "Of the tokens of draftloop_prefix_cache_queries_total, those that were computed before.",
    registry=REGISTRY,
)
QUEUE_TIME = Histogram(
    "draftloop_session_queue_time_seconds",
    "Time that a session waited for a slot of the cache.",
    buckets=REQUEST_BUCKETS,
    registry=REGISTRY,
)
ENGINE_QUEUE_TIME = Histogram(
    "draftloop_engine_queue_time_seconds",
    "Time that a draft, a verification or a prefill waited for the engine.",
    buckets=ROUND_BUCKETS,
    registry=REGISTRY,
)
ITERATION_TOKENS = Histogram(
    "draftloop_iteration_tokens",
    "Tokens of all sessions in one forward.",
    buckets=TOKEN_BUCKETS,
    registry=REGISTRY,
)
BATCH_SIZE = Histogram(
    "draftloop_forward_batch_size",
    "Sessions in one forward.",
    buckets=TOKEN_BUCKETS[:10],
    registry=REGISTRY,
)
FORWARD_TIME = Histogram(
    "draftloop_forward_time_seconds",
    "Time of one forward.",
    buckets=ROUND_BUCKETS,
    registry=REGISTRY,
)
FORWARD_TOKENS = Counter(
    "draftloop_forward_tokens_total",
    "Tokens that forwards computed: committed ones, prefill included, and nodes of drafts.",
    ["kind"],
    registry=REGISTRY,
)
FORWARD_FAILURES = Counter(
    "draftloop_forward_failures_total",
    "Forwards that raised an error; the sessions in them failed.",
    registry=REGISTRY,
)
COMMITTED_TOKENS = FORWARD_TOKENS.labels("committed")
DRAFT_TOKENS = FORWARD_TOKENS.labels("draft")


def observe_opening(slot: Slot, tokens: int) -> None:
    """Counts a session of `tokens` tokens that has prefilled, except perhaps its last chunk."""
    if slot.text is not None:
        PREFIX_CACHE_QUERIES.inc(tokens)
        PREFIX_CACHE_HITS.inc(slot.shared)


def observe_forwards(forwards: Sequence[Pass], sessions: int) -> None:
    """Counts successful forwards, each of `sessions` sessions; for the engine's thread."""
    for forward in forwards:
        FORWARD_TIME.observe(forward.nanoseconds / 1e9)
        BATCH_SIZE.observe(sessions)
        ITERATION_TOKENS.observe(forward.rows)
        COMMITTED_TOKENS.inc(forward.rows - forward.nodes)
        DRAFT_TOKENS.inc(forward.nodes)


def _hosts(hosts: Sequence[ModelHost]) -> Iterator[Metric]:
    running, waiting, most, usage = (
        GaugeMetricFamily(f"draftloop_{name}", meaning)
        for name, meaning in (
            ("num_sessions_running", "Sessions that hold a slot of the cache."),
            ("num_sessions_waiting", "Sessions that wait for a slot."),
            ("max_sessions", "Slots of the cache."),
            ("kv_cache_usage_perc", "Share of the cache's rows that hold keys; 1 is full."),
        )
    )
    if hosts:
        admissions = [host.admission for host in hosts]
        caches = [host.model.cache for host in hosts]
        running.add_metric([], sum(admission.open_sessions for admission in admissions))
        waiting.add_metric([], sum(admission.waiting_sessions for admission in admissions))
        most.add_metric([], sum(cache.shape.slots for cache in caches))
        rooms = sum(cache.shape.slots * cache.shape.rows for cache in caches)
        usage.add_metric([], sum(cache.used_rows for cache in caches) / rooms)
    yield from (running, waiting, most, usage, _models(hosts), _curve(hosts))


def _models(hosts: Sequence[ModelHost]) -> Metric:
    labels = ["model_name", "dtype", "quantization", "device"]
    family = GaugeMetricFamily("draftloop_model_parameters", "Weights of the model.", labels=labels)
    for host in hosts:
        info = host.info
        values = [info.model_name, info.dtype, info.quantization or "none", info.device]
        family.add_metric(values, info.parameters)
    return family


def _curve(hosts: Sequence[ModelHost]) -> Metric:
    family = GaugeMetricFamily(
        "draftloop_forward_cost_seconds",
        "The cost curve as it is now: time of a forward with so many new tokens in each of so many "
        "sessions (batch) after so many earlier tokens (context).",
        labels=["tokens", "context", "batch"],
    )
    for host in hosts:
        for point in host.model.cost_curve:
            place = [str(point.tokens), str(point.context), str(point.batch)]
            family.add_metric(place, point.forward_ns / 1e9)
    return family


HOSTS: Live[ModelHost] = Live(_hosts)
