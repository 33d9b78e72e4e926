"""Time of a verification by number of nodes: the service's measured cost curve plus overhead."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from draftloop.cost_line import CostLine, cost_line
from draftloop.model_info import CostPoint
from draftloop.tree import ServiceTimings
from orchestrator.verifier_load import VerifierLoad

SLOPE_STEP_NODES = 2
# Latest rounds of any kind, whose median is the current level of overhead. Rounds with drafts are
# kept for longer: what a draft adds changes less, and is only measured while drafts seem to pay.
LATEST_ROUNDS, LATEST_DRAFTED_ROUNDS = 32, 64
# The fit is renewed after so many drafted rounds were added or forgotten.
REFIT_EVERY = 8
# After so many rounds that say nothing about drafts, the oldest drafted round is forgotten.
# Otherwise, overheads measured while the machine was busy could prevent drafts for good: without
# drafts, nothing corrects them.
FORGET_EVERY = 4
# Fewest drafted rounds from which the overhead per node is estimated.
MIN_DRAFTED_FOR_SLOPE = 12
NO_TIMINGS = ServiceTimings()


class VerifyOverhead:
    """How much longer recent rounds of all requests took than their expected forwards.

    With a small model, the overhead exceeds the forward. It is shared by all requests, because a
    request that had to measure it first would begin with wrong prices.

    The overhead is a level common to all rounds, which follows how busy the machine is, plus a
    constant per draft, plus a constant per node. All three are medians: otherwise a single stalled
    round could make drafts look too expensive to be tried again. What drafts add is gradually
    forgotten while no drafts are measured.
    """

    def __init__(self) -> None:
        self._levels: deque[float] = deque(maxlen=LATEST_ROUNDS)
        self._drafted: deque[tuple[int, float]] = deque(maxlen=LATEST_DRAFTED_ROUNDS)
        self._rounds_since_fit = self._plain = 0
        self._level = self._draft = self._node = 0.0

    def nanoseconds(self, nodes: float) -> float:
        """Expected overhead of a round with so many nodes."""
        return self._level + self._added(nodes)

    @property
    def node_ns(self) -> float:
        """Overhead per node."""
        return self._node

    def observe(
        self, nodes: int, nanoseconds: float, *, is_shared: bool = False, by_choice: bool = True
    ) -> None:
        """Records the overhead of a round.

        `is_shared`: other sessions shared the round, so it says nothing about what a draft adds.
        `by_choice`: prices decided whether the round has a draft; otherwise only the level is
        updated.
        """
        if self._levels and by_choice:
            self._learn_draft_cost(0 if is_shared else nodes, nanoseconds - self._level)
        self._levels.append(nanoseconds - self._added(nodes))
        self._level = statistics.median(self._levels)

    def _learn_draft_cost(self, nodes: int, added: float) -> None:
        if nodes > 0:
            self._drafted.append((nodes, added))
            self._plain = 0
        else:
            self._plain += 1
            if self._plain % FORGET_EVERY or not self._drafted:
                return
            self._drafted.popleft()
        self._rounds_since_fit += 1
        if self._rounds_since_fit >= REFIT_EVERY or not self._drafted:
            self._fit()

    def _added(self, nodes: float) -> float:
        return self._draft + nodes * self._node if nodes > 0 else 0.0

    def _fit(self) -> None:
        """Fits Tukey's resistant line: slope between the medians of the outer thirds by size."""
        self._rounds_since_fit = 0
        ordered = sorted(self._drafted)
        third = len(ordered) // 3 if len(ordered) >= MIN_DRAFTED_FOR_SLOPE else 0
        self._node = self._draft = 0.0
        if not ordered:
            return
        if third:
            (few_nodes, few_ns), (many_nodes, many_ns) = (
                _median_point(ordered[:third]),
                _median_point(ordered[-third:]),
            )
            self._node = (
                max(0.0, (many_ns - few_ns) / (many_nodes - few_nodes))
                if many_nodes > few_nodes
                else 0.0
            )
        residual = statistics.median(added - nodes * self._node for nodes, added in ordered)
        self._draft = max(0.0, residual)


def _median_point(points: list[tuple[int, float]]) -> tuple[float, float]:
    nodes, added = zip(*points, strict=True)
    return statistics.median(nodes), statistics.median(added)


@dataclass(slots=True)
class VerifyCost:
    """Time of a verification by number of nodes: the forward, from the curve, plus the overhead.

    The service keeps its curve up to date, and `follow` takes over the latest one.
    `shared_overhead` is the overhead of wire, queue, sampling and loop, which the curve does not
    include. By `load`, other sessions have rows in the same forward, to which the nodes are added.
    """

    curve: tuple[CostPoint, ...]
    # approximate tokens in the session; None: the context length with the most measured points
    context: int | None = None
    shared_overhead: VerifyOverhead = field(default_factory=VerifyOverhead)
    load: VerifierLoad = field(default_factory=VerifierLoad)
    _line: CostLine = field(init=False, repr=False)
    # forward times for 0, 1, 2 ... nodes, computed for `_cached_other_rows` rows of other sessions
    _forwards: list[float] = field(init=False, default_factory=list, repr=False)
    _cached_other_rows: int = field(init=False, default=0, repr=False)
    # cached result of `_lowest_node_time`, after its argument
    _best: tuple[int, float] | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        self._line = cost_line(self.curve, self.context)

    def follow(self, curve: tuple[CostPoint, ...]) -> None:
        """Uses `curve` from now on: the service has corrected it, or another one took over.

        An empty curve, of a service that has measured nothing, is ignored.
        """
        if curve and curve is not self.curve:
            self.curve = curve
            self._line = cost_line(curve, self.context)
            self._forget_forwards()

    def times(self, max_nodes: int) -> list[float]:
        """Expected times of verifying 0 to `max_nodes` nodes."""
        overhead = self.shared_overhead.nanoseconds
        return [
            forward + overhead(nodes)
            for nodes, forward in enumerate(self._forward_times(max_nodes))
        ]

    def nanoseconds(self, nodes: float) -> float:
        """Expected time of verifying so many nodes."""
        return max(1.0, self._forward(nodes) + self.shared_overhead.nanoseconds(nodes))

    def added_nanoseconds(self, nodes: float) -> float:
        """Expected time by which a round with so many nodes exceeds one without a draft."""
        return self.nanoseconds(nodes) - self.nanoseconds(0)

    def node_nanoseconds(self, nodes: float, max_nodes: int) -> float:
        """Lower bound for the cost of one more node after `nodes`; drafts have at most `max_nodes`.

        Normally this is the slope over the next few nodes. Cost curves are staircases: right before
        a step that slope is too high, so it is capped by the cost per node of the draft size with
        the lowest cost per node.
        """
        slope = (self._forward(nodes + SLOPE_STEP_NODES) - self._forward(nodes)) / SLOPE_STEP_NODES
        return (
            max(0.0, min(slope, self._lowest_node_time(max_nodes))) + self.shared_overhead.node_ns
        )

    def observe(
        self,
        nodes: int,
        nanoseconds: int,
        timings: ServiceTimings = NO_TIMINGS,
        *,
        by_choice: bool = True,
    ) -> None:
        """Records how long a round took without its draft, and the service's timings of it.

        `by_choice`: prices decided whether the round has a draft.
        """
        rows = nodes + 1
        self.load.observe(rows, timings)
        forward = self._line.nanoseconds(max(rows, timings.round_rows))
        overhead_ns = nanoseconds - timings.prompts_ns - forward
        is_shared = self.is_shared(timings)
        self.shared_overhead.observe(nodes, overhead_ns, is_shared=is_shared, by_choice=by_choice)

    def is_shared(self, timings: ServiceTimings) -> bool:
        """Whether other sessions influenced how long that verification took.

        `load` alone does not tell: at the beginning of a burst its median is not up yet, but rounds
        already wait for the prompts of the burst.
        """
        return self.load.is_shared or timings.is_shared

    def _lowest_node_time(self, max_nodes: int) -> float:
        """Forward time per node, for the draft size up to `max_nodes` at which it is lowest."""
        forwards = self._forward_times(max_nodes)
        if self._best is None or self._best[0] != max_nodes:
            baseline, *others = forwards
            per_node = ((more - baseline) / count for count, more in enumerate(others, 1))
            self._best = max_nodes, min(per_node, default=0.0)
        return self._best[1]

    def _forward_times(self, max_nodes: int) -> list[float]:
        """Forward times with 0 to `max_nodes` nodes."""
        if self._cached_other_rows != self.load.other_rows:
            self._cached_other_rows = self.load.other_rows
            self._forget_forwards()
        known = self._forwards
        known.extend(self._forward(nodes) for nodes in range(len(known), max_nodes + 1))
        return known[: max_nodes + 1]

    def _forget_forwards(self) -> None:
        self._forwards.clear()
        self._best = None

    def _forward(self, nodes: float) -> float:
        return self._line.nanoseconds(self.load.other_rows + nodes + 1)
