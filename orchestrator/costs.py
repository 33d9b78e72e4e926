"""What a verification costs by its size: the service's measured curve, and what is around it."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from draftloop.cost_line import CostLine, cost_line
from draftloop.model_info import CostPoint

MEMORY = 0.8
SLOPE_NODES = 2
# Verifications, of all requests, that a new request's prices start from.
LATEST = 64


class VerifyOverhead:
    """How much longer verifications take than their forwards should, in all requests of late.

    With a small model that is more than the forward. A request that had to find it out first would
    begin with wrong prices.
    """

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=LATEST)

    @property
    def usual_ns(self) -> float:
        """The median; 0 before the first."""
        return statistics.median(self._latest) if self._latest else 0.0

    def observe(self, nanoseconds: float) -> None:
        """Takes in a verification's."""
        self._latest.append(nanoseconds)


@dataclass(slots=True)
class VerifyCost:
    """Time of a verification by number of nodes: the forward's by the curve, and the overhead.

    The services keep their curves right while they run; wire, queue and sampling, which the curve
    does not know, hardly depend on the nodes.
    """

    curve: tuple[CostPoint, ...]
    # about how many tokens the session holds; the fullest part of the curve without
    context: int | None = None
    everybodys: VerifyOverhead | None = None  # where the overhead starts; learns too
    overhead_ns: float = field(init=False, default=0.0)
    _line: CostLine = field(init=False, repr=False)
    _forwards: list[float] = field(init=False, default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self._line = cost_line(self.curve, self.context)
        if self.everybodys is not None:
            self.overhead_ns = self.everybodys.usual_ns

    def forwards(self, most: int) -> list[float]:
        """Times of the forwards alone with 0 to `most` nodes at least."""
        known = self._forwards
        known.extend(self._line.nanoseconds(nodes + 1) for nodes in range(len(known), most + 1))
        return known

    def nanoseconds(self, nodes: float) -> float:
        """Expected time of verifying so many nodes."""
        return max(1.0, self._line.nanoseconds(nodes + 1) + self.overhead_ns)

    def node_nanoseconds(self, nodes: float) -> float:
        """What one more node costs beyond so many, as the mean of the next few."""
        more = self.nanoseconds(nodes + SLOPE_NODES) - self.nanoseconds(nodes)
        return max(0.0, more / SLOPE_NODES)

    def observe(self, nodes: int, nanoseconds: int) -> None:
        """Takes in what a verification took."""
        overhead = nanoseconds - self._line.nanoseconds(nodes + 1)
        self.overhead_ns = MEMORY * self.overhead_ns + (1 - MEMORY) * overhead
        if self.everybodys is not None:
            self.everybodys.observe(overhead)
