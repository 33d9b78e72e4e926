"""What a verification costs by its size: the service's measured curve, held to what rounds take."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from draftloop.cost_line import CostLine, cost_line
from draftloop.model_info import CostPoint

MEMORY = 0.8
SLOPE_NODES = 8
# Verifications, of all requests, that a new request's prices start from.
LATEST = 64


class VerifyScale:
    """How much longer verifications take than the curve says, in all requests of late.

    The curve knows forwards alone; what is around them can be more than the forward of a small
    model. A request that had to find that out first would begin with wrong prices.
    """

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=LATEST)

    @property
    def usual(self) -> float:
        """The median; 1 before the first."""
        return statistics.median(self._latest) if self._latest else 1.0

    def observe(self, ratio: float) -> None:
        """Takes in what a verification took over what the curve says."""
        self._latest.append(ratio)


@dataclass(slots=True)
class VerifyCost:
    """Time of a verification by number of nodes: the measured curve, scaled by what rounds take."""

    curve: tuple[CostPoint, ...]
    scale: float = 1.0
    # about how many tokens the session holds; the fullest part of the curve without
    context: int | None = None
    everybodys: VerifyScale | None = None  # where `scale` starts; learns too
    _line: CostLine = field(init=False, repr=False)
    _by_nodes: list[float] = field(default_factory=list, repr=False)  # unscaled

    def __post_init__(self) -> None:
        self._line = cost_line(self.curve, self.context)
        if self.everybodys is not None:
            self.scale = self.everybodys.usual

    def unscaled(self, most: int) -> list[float]:
        """Times of 0 to `most` nodes at least, still to be multiplied by `scale`."""
        known = self._by_nodes
        known.extend(self._line.nanoseconds(nodes + 1) for nodes in range(len(known), most + 1))
        return known

    def nanoseconds(self, nodes: float) -> float:
        """Expected time of verifying so many nodes."""
        return self._line.nanoseconds(nodes + 1) * self.scale

    def node_nanoseconds(self, nodes: float) -> float:
        """What one more node costs beyond so many, as the mean of the next few."""
        more = self.nanoseconds(nodes + SLOPE_NODES) - self.nanoseconds(nodes)
        return max(0.0, more / SLOPE_NODES)

    def observe(self, nodes: int, nanoseconds: int) -> None:
        """Takes in what a verification took."""
        ratio = nanoseconds / max(self._line.nanoseconds(nodes + 1), 1.0)
        self.scale = MEMORY * self.scale + (1 - MEMORY) * ratio
        if self.everybodys is not None:
            self.everybodys.observe(ratio)
