"""What a verification costs by its size: the service's measured curve, and what is around it."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from draftloop.cost_line import CostLine, cost_line
from draftloop.model_info import CostPoint

MEMORY = 0.8
SLOPE_NODES = 2
# Rounds, of all requests, that a new request's prices start from.
LATEST = 64
# How much of a change of rounds of one kind is taken to hold for the other kind too, once both have
# been seen so often: what changes is mostly the machine. Or a price from a busy moment would stay
# as long as nothing is done but what it makes look cheap.
SHARED, WELL_KNOWN = 0.75, 8


class VerifyOverhead:
    """How much longer rounds take than their forwards should, in all requests of late.

    With a small model that is more than the forward. A request that had to find it out first would
    begin with wrong prices. A round with a draft has more around it, whatever the draft's size.
    """

    def __init__(self) -> None:
        self._latest: list[deque[float]] = [deque(maxlen=LATEST), deque(maxlen=LATEST)]
        self._seen = [0, 0]

    def usual_ns(self, drafted: bool) -> float:
        """The median with or without a draft; what nobody knows is taken to be as the other."""
        latest = self._latest[drafted] or self._latest[not drafted]
        return statistics.median(latest) if latest else 0.0

    def knows(self, drafted: bool) -> bool:
        """Whether there was any round of the kind."""
        return self._seen[drafted] > 0

    @property
    def knows_both_well(self) -> bool:
        """Whether what changes for one kind can be told from how the two differ."""
        return min(self._seen) >= WELL_KNOWN

    def observe(self, drafted: bool, nanoseconds: float) -> None:
        """Takes in a round's."""
        if self.knows_both_well:
            change = SHARED * (nanoseconds - self.usual_ns(drafted))
            self._latest[not drafted].append(self.usual_ns(not drafted) + change)
        self._latest[drafted].append(nanoseconds)
        self._seen[drafted] += 1


@dataclass(slots=True)
class VerifyCost:
    """Time of a verification by number of nodes: the forward's by the curve, and the overhead.

    The services keep their curves right while they run; wire, queue, sampling and the loop, which
    the curve does not know, hardly depend on the nodes. `overheads_ns`: without and with a draft.
    """

    curve: tuple[CostPoint, ...]
    # about how many tokens the session holds; the fullest part of the curve without
    context: int | None = None
    everybodys: VerifyOverhead = field(default_factory=VerifyOverhead)  # gives a start; learns too
    overheads_ns: list[float] = field(init=False)
    _line: CostLine = field(init=False, repr=False)
    _forwards: list[float] = field(init=False, default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self._line = cost_line(self.curve, self.context)
        self.overheads_ns = [self.everybodys.usual_ns(drafted) for drafted in (False, True)]

    def times(self, most: int) -> list[float]:
        """Expected times of verifying 0 to `most` nodes."""
        known = self._forwards
        known.extend(self._line.nanoseconds(nodes + 1) for nodes in range(len(known), most + 1))
        plain, drafted = self.overheads_ns
        return [known[0] + plain, *(forward + drafted for forward in known[1 : most + 1])]

    def nanoseconds(self, nodes: float) -> float:
        """Expected time of verifying so many nodes."""
        return max(1.0, self._line.nanoseconds(nodes + 1) + self.overheads_ns[nodes > 0])

    def node_nanoseconds(self, nodes: float) -> float:
        """What one more node costs beyond so many, as the mean of the next few."""
        more = self._line.nanoseconds(nodes + 1 + SLOPE_NODES) - self._line.nanoseconds(nodes + 1)
        return max(0.0, more / SLOPE_NODES)

    def observe(self, nodes: int, nanoseconds: int) -> None:
        """Takes in what a round took, its draft apart."""
        overhead, drafted = nanoseconds - self._line.nanoseconds(nodes + 1), nodes > 0
        known, change = self.overheads_ns, (1 - MEMORY) * (overhead - self.overheads_ns[drafted])
        known[drafted] += change
        self.everybodys.observe(drafted, overhead)
        if self.everybodys.knows_both_well:
            known[not drafted] += SHARED * change
        elif not self.everybodys.knows(not drafted):
            known[not drafted] = known[drafted]
