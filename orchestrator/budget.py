"""How much to draft next: the depth that promises the most tokens per second.

Expected tokens per round of a chain of n drafted tokens that are each accepted with chance a:
(1 - a^(n + 1)) / (1 - a) (Leviathan et al. 2211.17192, equation 1). The costs are measured: the
services' curves at start, then what every round of this request took.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from draftloop.model_info import CostPoint
from draftloop.tree import DraftBudget

PRIOR_ACCEPTANCE = 0.6
PRIOR_WEIGHT = 6.0
MEMORY = 0.97
COST_MEMORY = 0.8
NO_DRAFT = DraftBudget(max_nodes=0, max_depth=0)
# After so many rounds without a draft one is tried again: the text may have become easier.
PROBE_ROUNDS = 16


def expected_tokens(acceptance: float, depth: int) -> float:
    """Tokens per round of a chain of `depth`, the bonus token included."""
    if acceptance >= 1:
        return depth + 1.0
    return (1 - acceptance ** (depth + 1)) / (1 - acceptance)


@dataclass(slots=True)
class VerifyCost:
    """Time of a verification by number of nodes: the measured curve, scaled by what rounds take."""

    curve: tuple[CostPoint, ...]
    scale: float = 1.0

    def nanoseconds(self, nodes: int) -> float:
        """Expected time of verifying so many nodes."""
        return self._on_curve(nodes + 1) * self.scale

    def observe(self, nodes: int, nanoseconds: int) -> None:
        """Takes in what a verification took."""
        ratio = nanoseconds / max(self._on_curve(nodes + 1), 1.0)
        self.scale = COST_MEMORY * self.scale + (1 - COST_MEMORY) * ratio

    def _on_curve(self, tokens: int) -> float:
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


@dataclass(slots=True)
class Controller:
    """Chooses the depth of the next draft from running acceptance and costs."""

    max_depth: int
    verify_cost: VerifyCost
    draft_token_ns: float
    round_ns: float = 0.0
    fixed: bool = False
    _accepted: float = PRIOR_ACCEPTANCE * PRIOR_WEIGHT
    _judged: float = PRIOR_WEIGHT
    _rounds_without: int = field(default=0)

    @property
    def acceptance(self) -> float:
        """Running chance that a drafted token is accepted once its parent was."""
        return self._accepted / self._judged

    def next_budget(self, room: int) -> DraftBudget:
        """The budget of the next round; `room` is the most depth that makes sense."""
        limit = min(self.max_depth, room)
        depth = limit if self.fixed else self._best_depth(limit)
        if depth == 0 and limit > 0 and self._rounds_without >= PROBE_ROUNDS:
            depth = min(2, limit)
        self._rounds_without = 0 if depth else self._rounds_without + 1
        return DraftBudget(max_nodes=depth, max_depth=depth) if depth else NO_DRAFT

    def observe(self, drafted: int, accepted: int) -> None:
        """Takes in a verdict: `accepted` of a chain of `drafted` tokens, the next one refused."""
        judged = min(accepted + 1, drafted)
        self._accepted = MEMORY * self._accepted + accepted
        self._judged = MEMORY * self._judged + judged

    def observe_draft_cost(self, drafted: int, nanoseconds: int) -> None:
        """Takes in what a draft took, waiting included."""
        if drafted:
            share = (1 - COST_MEMORY) * nanoseconds / drafted
            self.draft_token_ns = COST_MEMORY * self.draft_token_ns + share

    def _best_depth(self, limit: int) -> int:
        return max(range(limit + 1), key=self._tokens_per_second)

    def _tokens_per_second(self, depth: int) -> float:
        drafting = depth * self.draft_token_ns
        cost = self.round_ns + drafting + self.verify_cost.nanoseconds(depth)
        return expected_tokens(self.acceptance, depth) / cost
