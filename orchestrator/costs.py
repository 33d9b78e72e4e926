"""What a verification costs by its size: the service's measured curve, held to what rounds take."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from draftloop.model_info import CostPoint

MEMORY = 0.8
SLOPE_NODES = 8


@dataclass(slots=True)
class VerifyCost:
    """Time of a verification by number of nodes: the measured curve, scaled by what rounds take."""

    curve: tuple[CostPoint, ...]
    scale: float = 1.0

    def nanoseconds(self, nodes: float) -> float:
        """Expected time of verifying so many nodes."""
        return self._on_curve(nodes + 1) * self.scale

    def node_nanoseconds(self, nodes: float) -> float:
        """What one more node costs beyond so many, as the mean of the next few."""
        more = self.nanoseconds(nodes + SLOPE_NODES) - self.nanoseconds(nodes)
        return max(0.0, more / SLOPE_NODES)

    def observe(self, nodes: int, nanoseconds: int) -> None:
        """Takes in what a verification took."""
        ratio = nanoseconds / max(self._on_curve(nodes + 1), 1.0)
        self.scale = MEMORY * self.scale + (1 - MEMORY) * ratio

    def _on_curve(self, tokens: float) -> float:
        points = self.curve
        if not points:
            return 1.0
        at = bisect_left([point.tokens for point in points], tokens)
        if at == 0:
            return float(points[0].forward_ns)
        if at == len(points):
            return points[-1].forward_ns * tokens / points[-1].tokens
        left, right = points[at - 1], points[at]
        share = (tokens - left.tokens) / (right.tokens - left.tokens)
        return left.forward_ns + share * (right.forward_ns - left.forward_ns)
