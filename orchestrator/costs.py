"""What a verification costs by its size: the service's measured curve, and what is around it."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from draftloop.cost_line import CostLine, cost_line
from draftloop.model_info import CostPoint
from draftloop.tree import ServiceTimings
from orchestrator.verifier_load import VerifierLoad

SLOPE_NODES = 2
# Rounds of any kind whose median is how busy everything is now. What a draft adds is remembered for
# longer: it changes less, and is seen only where drafts are thought to pay.
LATEST, LATEST_DRAFTED = 32, 64
# Drafted rounds, more of them or fewer, after which what a draft adds is reckoned anew.
REFIT = 8
# Rounds that say nothing of drafts after which one with a draft, the oldest, is forgotten: what was
# seen while the machine was busy otherwise would forbid drafts for good, as nothing corrects it
# without them.
FADING = 4
# From so many on their thirds say what a node adds.
FEWEST_FOR_SLOPE = 12
UNTOLD = ServiceTimings()


class VerifyOverhead:
    """How much longer rounds take than their forwards should, in all requests of late.

    With a small model that is more than the forward. A request that had to find it out first would
    begin with wrong prices. All rounds have a level in common, which follows how busy the machine
    is; a draft adds something to it, and something for every node. All are medians: a round in
    which the machine stood still would otherwise make drafts look too dear to be tried again. What
    drafts added is forgotten where nothing more is heard of it.
    """

    def __init__(self) -> None:
        self._levels: deque[float] = deque(maxlen=LATEST)
        self._drafted: deque[tuple[int, float]] = deque(maxlen=LATEST_DRAFTED)
        self._unfitted = self._plain = 0
        self._level = self._draft = self._node = 0.0

    def nanoseconds(self, nodes: float) -> float:
        """Of a round with so many nodes."""
        return self._level + self._added(nodes)

    @property
    def node_ns(self) -> float:
        """What a node adds."""
        return self._node

    def observe(
        self, nodes: int, nanoseconds: float, *, is_shared: bool = False, by_choice: bool = True
    ) -> None:
        """Takes in a round's.

        Where others shared it, it says as little about what a draft adds as one without a draft.
        """
        if self._levels and by_choice:
            self._learn(0 if is_shared else nodes, nanoseconds - self._level)
        self._levels.append(nanoseconds - self._added(nodes))
        self._level = statistics.median(self._levels)

    def _learn(self, nodes: int, added: float) -> None:
        if nodes > 0:
            self._drafted.append((nodes, added))
            self._plain = 0
        else:
            self._plain += 1
            if self._plain % FADING or not self._drafted:
                return
            self._drafted.popleft()
        self._unfitted += 1
        if self._unfitted >= REFIT or not self._drafted:
            self._fit()

    def _added(self, nodes: float) -> float:
        return self._draft + nodes * self._node if nodes > 0 else 0.0

    def _fit(self) -> None:
        """A line through the medians of the smallest and the largest drafts (Tukey's)."""
        self._unfitted = 0
        ordered = sorted(self._drafted)
        third = len(ordered) // 3 if len(ordered) >= FEWEST_FOR_SLOPE else 0
        self._node = self._draft = 0.0
        if not ordered:
            return
        if third:
            (few, less), (many, more) = (_middle(ordered[:third]), _middle(ordered[-third:]))
            self._node = max(0.0, (more - less) / (many - few)) if many > few else 0.0
        rest = statistics.median(added - nodes * self._node for nodes, added in ordered)
        self._draft = max(0.0, rest)


def _middle(points: list[tuple[int, float]]) -> tuple[float, float]:
    nodes, added = zip(*points, strict=True)
    return statistics.median(nodes), statistics.median(added)


@dataclass(slots=True)
class VerifyCost:
    """Time of a verification by number of nodes: the forward's by the curve, and the overhead.

    The services keep their curves right while they run; wire, queue, sampling and the loop, which
    the curve does not know, are `everybodys`. The nodes come on top of the rows that other sessions
    have in the same forward, by `load`.
    """

    curve: tuple[CostPoint, ...]
    # about how many tokens the session holds; the fullest part of the curve without
    context: int | None = None
    everybodys: VerifyOverhead = field(default_factory=VerifyOverhead)
    load: VerifierLoad = field(default_factory=VerifierLoad)
    _line: CostLine = field(init=False, repr=False)
    # of 0, 1, 2 ... nodes, beside so many rows of others
    _forwards: list[float] = field(init=False, default_factory=list, repr=False)
    _beside: int = field(init=False, default=0, repr=False)
    # of the best of sizes up to so many nodes: what one of them costs
    _best: tuple[int, float] | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        self._line = cost_line(self.curve, self.context)

    def times(self, most: int) -> list[float]:
        """Expected times of verifying 0 to `most` nodes."""
        around = self.everybodys.nanoseconds
        return [forward + around(nodes) for nodes, forward in enumerate(self._until(most))]

    def nanoseconds(self, nodes: float) -> float:
        """Expected time of verifying so many nodes."""
        return max(1.0, self._forward(nodes) + self.everybodys.nanoseconds(nodes))

    def node_nanoseconds(self, nodes: float, most: int) -> float:
        """What one more node costs beyond so many, at least, where drafts have at most `most`.

        That is what the next few do. Curves are stairs: where they are on a step it is what a node
        of the best size of draft does, behind the step.
        """
        here = (self._forward(nodes + SLOPE_NODES) - self._forward(nodes)) / SLOPE_NODES
        return max(0.0, min(here, self._best_of(most))) + self.everybodys.node_ns

    def observe(
        self,
        nodes: int,
        nanoseconds: int,
        timings: ServiceTimings = UNTOLD,
        *,
        by_choice: bool = True,
    ) -> None:
        """Takes in what a round took, its draft apart, and what the service says of it.

        `by_choice`: it was for prices to say whether it has a draft.
        """
        rows = nodes + 1
        self.load.observe(rows, timings)
        forward = self._line.nanoseconds(max(rows, timings.round_rows))
        around = nanoseconds - timings.prompts_ns - forward
        is_shared = self.is_shared(timings)
        self.everybodys.observe(nodes, around, is_shared=is_shared, by_choice=by_choice)

    def is_shared(self, timings: ServiceTimings) -> bool:
        """Whether others have to do with how long that verification took.

        The first ones of a crowd do not make a load yet, and wait for its prompts.
        """
        return self.load.is_shared or timings.is_shared

    def _best_of(self, most: int) -> float:
        """What a node of the best size of draft costs."""
        forwards = self._until(most)
        if self._best is None or self._best[0] != most:
            none, *others = forwards
            each = ((more - none) / count for count, more in enumerate(others, 1))
            self._best = most, min(each, default=0.0)
        return self._best[1]

    def _until(self, most: int) -> list[float]:
        """Forwards with 0 to `most` nodes."""
        if self._beside != self.load.others_rows:
            self._beside = self.load.others_rows
            self._forwards.clear()
            self._best = None
        known = self._forwards
        known.extend(self._forward(nodes) for nodes in range(len(known), most + 1))
        return known[: most + 1]

    def _forward(self, nodes: float) -> float:
        return self._line.nanoseconds(self.load.others_rows + nodes + 1)
