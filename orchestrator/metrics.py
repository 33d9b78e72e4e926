"""The orchestrator's metrics of requests, rounds and drafts. See docs/metrics.md.

Strategies, sources and positions are known in advance, so most of their series are looked up once:
counting a round takes some microseconds.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from draftloop.errors import (
    DeadlineExceeded,
    DraftloopError,
    Forbidden,
    InvalidInput,
    Mismatch,
    Overloaded,
    Unauthenticated,
    Unavailable,
)
from draftloop.metrics import REGISTRY, REQUEST_BUCKETS, ROUND_BUCKETS, TOKEN_BUCKETS, Live
from draftloop.tree import Draft, TokenSource, Verification
from orchestrator.figures import RoundTimes
from orchestrator.stream import NoAnswer

if TYPE_CHECKING:
    from orchestrator.deployment import Deployment

# Accepted nodes at these depths have a series each, as in vLLM; deeper ones are only in the total.
POSITIONS = 16

SUCCESSES = Counter(
    "draftloop_request_success_total",
    "Requests that ended, by reason: stop, length, or abort if the client cancelled.",
    ["finished_reason"],
    registry=REGISTRY,
)
FAILURES = Counter(
    "draftloop_request_failure_total",
    "Requests that were refused or failed, by reason.",
    ["reason"],
    registry=REGISTRY,
)
HTTP_REQUESTS = Counter(
    "draftloop_http_requests_total",
    "Answers to HTTP requests by route (unknown: refused earlier) and status, with refusals.",
    ["route", "status"],
    registry=REGISTRY,
)
RUNNING = Gauge(
    "draftloop_num_requests_running",
    "Running requests that have their first token.",
    registry=REGISTRY,
)
WAITING = Gauge(
    "draftloop_num_requests_waiting",
    "Requests that wait for their first token.",
    registry=REGISTRY,
)
PROMPT_TOKENS = Counter(
    "draftloop_prompt_tokens_total",
    "Prompt tokens of requests that got their first token.",
    registry=REGISTRY,
)
GENERATION_TOKENS = Counter(
    "draftloop_generation_tokens_total", "Tokens generated.", registry=REGISTRY
)
FIRST_TOKEN = Histogram(
    "draftloop_time_to_first_token_seconds",
    "Time from a request's admission to its first token.",
    buckets=REQUEST_BUCKETS,
    registry=REGISTRY,
)
INTER_TOKEN = Histogram(
    "draftloop_inter_token_latency_seconds",
    "Time of a round by the tokens that it brought, counted once for each of them.",
    buckets=ROUND_BUCKETS,
    registry=REGISTRY,
)
LATENCY = Histogram(
    "draftloop_e2e_request_latency_seconds",
    "Time from a request's admission to its end, however it ended.",
    buckets=REQUEST_BUCKETS,
    registry=REGISTRY,
)
REQUEST_PROMPT = Histogram(
    "draftloop_request_prompt_tokens",
    "Prompt tokens of a request.",
    buckets=TOKEN_BUCKETS,
    registry=REGISTRY,
)
REQUEST_GENERATION = Histogram(
    "draftloop_request_generation_tokens",
    "Tokens that a request generated, however it ended.",
    buckets=TOKEN_BUCKETS,
    registry=REGISTRY,
)
DRAFTS = Counter(
    "draftloop_spec_decode_num_drafts_total",
    "Rounds that verified a draft.",
    ["strategy"],
    registry=REGISTRY,
)
DRAFT_TOKENS = Counter(
    "draftloop_spec_decode_num_draft_tokens_total",
    "Drafted tokens (nodes of the tree) that were verified.",
    ["strategy"],
    registry=REGISTRY,
)
ACCEPTED_TOKENS = Counter(
    "draftloop_spec_decode_num_accepted_tokens_total",
    "Drafted tokens that were accepted.",
    ["strategy"],
    registry=REGISTRY,
)
ACCEPTED_AT = Counter(
    "draftloop_spec_decode_num_accepted_tokens_per_pos_total",
    f"Drafted tokens accepted at a position, 0 to {POSITIONS - 1}, of their round.",
    ["position"],
    registry=REGISTRY,
)
DRAFTED_BY = Counter(
    "draftloop_draft_tokens_by_source_total",
    "Drafted tokens that were verified, by source.",
    ["source"],
    registry=REGISTRY,
)
ACCEPTED_BY = Counter(
    "draftloop_accepted_tokens_by_source_total",
    "Drafted tokens that were accepted, by source.",
    ["source"],
    registry=REGISTRY,
)
TOKENS_PER_ROUND = Histogram(
    "draftloop_round_tokens",
    "Tokens that a round brought: those accepted, and one more. Its mean is tokens per round.",
    ["strategy"],
    buckets=(1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32),
    registry=REGISTRY,
)
ROUND_TIME = Histogram(
    "draftloop_round_time_seconds",
    "Time of a round, from one commit to the next.",
    buckets=ROUND_BUCKETS,
    registry=REGISTRY,
)
SERVICE_TIME = Histogram(
    "draftloop_round_service_time_seconds",
    "Time that a round waited for an answer of a drafter that ran its model, or of a verifier.",
    ["service"],
    buckets=ROUND_BUCKETS,
    registry=REGISTRY,
)
HOP_TIME = Counter(
    "draftloop_round_hop_seconds_total",
    "Time of rounds by where it went; the hops add up to it. draft and verify are forwards of the "
    "two models, queue is waiting for them, wire is the network, lost is waiting for services that "
    "gave no answer, rest is everything else.",
    ["hop"],
    registry=REGISTRY,
)
FALLBACKS = Counter(
    "draftloop_fallback_rounds_total",
    "Rounds that wanted the drafter and went without it, by reason.",
    ["reason"],
    registry=REGISTRY,
)
REOPENED = Counter(
    "draftloop_sessions_reopened_total",
    "Verifier sessions that were lost and reopened, there or on another replica.",
    registry=REGISTRY,
)

_POSITION = [ACCEPTED_AT.labels(str(position)) for position in range(POSITIONS)]
_DRAFTED_BY = {source: DRAFTED_BY.labels(source.name.lower()) for source in TokenSource}
_ACCEPTED_BY = {source: ACCEPTED_BY.labels(source.name.lower()) for source in TokenSource}
_DRAFTER, _VERIFIER = SERVICE_TIME.labels("drafter"), SERVICE_TIME.labels("verifier")
_HOPS = {hop: HOP_TIME.labels(hop) for hop in ("draft", "verify", "queue", "wire", "lost", "rest")}
_INTERNAL, _ABORT, _INVALID = "internal", "abort", "invalid_input"
_REASONS = (
    (InvalidInput, _INVALID),
    (Overloaded, "overloaded"),
    (Unauthenticated, "unauthenticated"),
    (Forbidden, "forbidden"),
    (DeadlineExceeded, "deadline_exceeded"),
    (Mismatch, "mismatch"),
    (NoAnswer, "no_answer"),
    (Unavailable, "unavailable"),
    (DraftloopError, "other"),
)
_COUNTING: ContextVar[bool] = ContextVar("counting")  # set within `counting_refusals`


def _create_series(counter: Counter, labels: Iterable[str]) -> None:
    """Creates series before there is anything to count.

    An alert adds up failures and successes. The sum is absent if one of its series is, however many
    requests fail before the first success.
    """
    for label in labels:
        counter.labels(label)


_create_series(SUCCESSES, ("stop", "length", _ABORT))
_create_series(FAILURES, (*(name for _, name in _REASONS), _INTERNAL))


def reason_of(error: BaseException) -> str:
    """The metrics label of an error."""
    return next((name for kind, name in _REASONS if isinstance(error, kind)), _INTERNAL)


@contextlib.contextmanager
def counting_refusals() -> Iterator[None]:
    """Counts a request that is refused before it runs; only once if these contexts are nested."""
    within = _COUNTING.set(True)
    try:
        yield
    except Exception as error:
        if within.old_value is Token.MISSING:
            count_refused(error)
        raise
    finally:
        _COUNTING.reset(within)


def count_invalid() -> None:
    """Counts a request with invalid input."""
    FAILURES.labels(_INVALID).inc()


def count_refused(error: Exception) -> None:
    """Counts a request that failed with this error before it ran."""
    FAILURES.labels(reason_of(error)).inc()


@dataclass(frozen=True, slots=True)
class StrategySeries:
    """The series of one strategy."""

    drafts: Counter
    draft_tokens: Counter
    accepted_tokens: Counter
    tokens_per_round: Histogram


@functools.cache
def series_of(strategy: str) -> StrategySeries:
    """The series of one of the known strategies."""
    return StrategySeries(
        DRAFTS.labels(strategy),
        DRAFT_TOKENS.labels(strategy),
        ACCEPTED_TOKENS.labels(strategy),
        TOKENS_PER_ROUND.labels(strategy),
    )


class RequestMeter:
    """Counts one request.

    Call `record_start`, `record_first_token`, `record_round` for each round, and always
    `record_end`.
    """

    def __init__(self, strategy: str) -> None:
        self._series = series_of(strategy)
        self._gauge: Gauge | None = None
        self._began_ns = 0

    def record_start(self) -> None:
        """The request was admitted."""
        self._began_ns = time.perf_counter_ns()
        self._set_gauge(WAITING)

    def record_first_token(self, prompt_tokens: int, waited_ns: int, tokens: int) -> None:
        """The first token has arrived, after `waited_ns`."""
        if self._gauge is not None:
            self._set_gauge(RUNNING)
        PROMPT_TOKENS.inc(prompt_tokens)
        GENERATION_TOKENS.inc(tokens)
        FIRST_TOKEN.observe(waited_ns / 1e9)

    def record_round(
        self, draft: Draft, answer: Verification, kept: int, times: RoundTimes
    ) -> None:
        """Counts a round that brought `kept` tokens. To be called in an idle moment."""
        self._count_tokens(draft, answer, kept)
        seconds = times.round_ns / 1e9
        ROUND_TIME.observe(seconds)
        for _ in range(kept):
            INTER_TOKEN.observe(seconds / kept)
        if draft.timings.forwards:
            _DRAFTER.observe(times.draft_ns / 1e9)
        _VERIFIER.observe(times.verify_ns / 1e9)
        for hop, nanoseconds in times.hops(draft.timings, answer.timings).items():
            _HOPS[hop].inc(nanoseconds / 1e9)

    def record_end(
        self, finish_reason: str | None, error: BaseException | None, prompt: int, output: int
    ) -> str:
        """Counts the request's end; returns the name of its outcome."""
        self._set_gauge(None)
        LATENCY.observe((time.perf_counter_ns() - self._began_ns) / 1e9)
        REQUEST_PROMPT.observe(prompt)
        REQUEST_GENERATION.observe(output)
        if isinstance(error, Exception):
            reason = reason_of(error)
            FAILURES.labels(reason).inc()
            return reason
        # a BaseException that is no Exception: the client cancelled or left
        outcome = finish_reason or _ABORT
        SUCCESSES.labels(outcome).inc()
        return outcome

    def _count_tokens(self, draft: Draft, answer: Verification, kept: int) -> None:
        series, tree = self._series, draft.tree
        GENERATION_TOKENS.inc(kept)
        series.tokens_per_round.observe(kept)
        if not len(tree):
            return
        accepted = answer.verdict.accepted_nodes[:kept]
        series.drafts.inc()
        series.draft_tokens.inc(len(tree))
        series.accepted_tokens.inc(len(accepted))
        for position in _POSITION[: len(accepted)]:
            position.inc()
        for source, count in Tally(tree.sources).items():
            _DRAFTED_BY[source].inc(count)
        for source, count in Tally(tree.sources[node] for node in accepted).items():
            _ACCEPTED_BY[source].inc(count)

    def _set_gauge(self, gauge: Gauge | None) -> None:
        if self._gauge is not None:
            self._gauge.dec()
        if gauge is not None:
            gauge.inc()
        self._gauge = gauge


def _deployments(deployments: Sequence[Deployment]) -> Iterator[Metric]:
    replicas = GaugeMetricFamily(
        "draftloop_replicas",
        "Replicas that this orchestrator knows: ready, or resting after a failure.",
        labels=["role", "state"],
    )
    sessions = GaugeMetricFamily(
        "draftloop_replica_sessions",
        "Sessions of this orchestrator on the role's replicas, including replicas that left.",
        labels=["role"],
    )
    states: Tally[tuple[str, str]] = Tally()
    held: Tally[str] = Tally()
    for deployment in deployments:
        for role, known in deployment.replicas().items():
            states.update({(role, "ready"): 0, (role, "resting"): 0})
            held[role] += known.sessions
            for replica in known:
                states[role, "resting" if replica.is_resting else "ready"] += 1
    for (role, state), count in states.items():
        replicas.add_metric([role, state], count)
    for role, count in held.items():
        sessions.add_metric([role], count)
    yield from (replicas, sessions)


DEPLOYMENTS: Live[Deployment] = Live(_deployments)
