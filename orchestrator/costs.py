"""What a verification costs by its size: the service's measured curve, held to what rounds take."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftloop.cost_line import CostLine, cost_line
from draftloop.model_info import CostPoint

MEMORY = 0.8
SLOPE_NODES = 8


@dataclass(slots=True)
class VerifyCost:
    """Time of a verification by number of nodes: the measured curve, scaled by what rounds take."""

    curve: tuple[CostPoint, ...]
    scale: float = 1.0
    # about how many tokens the session holds; the fullest part of the curve without
    context: int | None = None
    _line: CostLine = field(init=False, repr=False)
    _by_nodes: list[float] = field(default_factory=list, repr=False)  # unscaled

    def __post_init__(self) -> None:
        self._line = cost_line(self.curve, self.context)

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
