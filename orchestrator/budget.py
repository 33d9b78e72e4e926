"""How much to draft next: what nodes and draft forwards must bring in to be worth their time.

Tokens per second are greatest when nothing is done that brings in fewer tokens than the same time
brings in anyway: at a rate of R tokens/s a node reached with probability P pays while
P > R x (seconds that one more node costs the verifier), and a draft forward while what it promises
exceeds R x its seconds. OPT-Tree's threshold (2406.17276, section 3.3), priced before paying.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from draftloop.pace import Pace
from draftloop.patience import Patience
from draftloop.tree import DraftBudget, DraftTree
from orchestrator.costs import VerifyCost

PRIOR_ACCEPTANCE = 0.6
PRIOR_WEIGHT = 6.0
MEMORY = 0.97
COST_MEMORY = 0.8
NO_DRAFT = DraftBudget(max_nodes=0, max_depth=0)
# After at most so many rounds without a draft one is tried again: the text may have become easier.
PROBE_ROUNDS = 16
# A round with a draft model, as a first guess: so many drafted tokens and so many emitted.
USUAL_DRAFT, USUAL_TOKENS, USUAL_ROUNDS = 3, 2, 4
# Rounds without a draft that are assumed to take what their forward is expected to.
PLAIN_ROUNDS = 2
# Rounds with drafts before their pace is believed.
TRUSTED_ROUNDS = 6


@dataclass(slots=True)
class Controller:
    """Prices the next draft, down to none at all; `fixed` drafts as much as is allowed.

    `draft_token_ns` is what a draft forward takes, waiting included. `gated` leaves rounds without
    a draft where drafts have not paid; strategies that weigh every draft themselves need no gate.
    """

    max_nodes: int
    verify_cost: VerifyCost
    draft_token_ns: float
    fixed: bool = False
    gated: bool = True
    modelled: Pace = field(init=False)
    _pace: Pace = field(default_factory=lambda: Pace(memory=0.95))  # of all rounds
    _drafted: Pace = field(default_factory=lambda: Pace(memory=0.95))
    _plain: Pace = field(default_factory=lambda: Pace(memory=0.9))
    _nodes: float = 0.0
    _accepted: float = PRIOR_ACCEPTANCE * PRIOR_WEIGHT
    _judged: float = PRIOR_WEIGHT
    # What costs say is sure, what a few rounds brought is partly luck, and tried again sooner.
    _dear: Patience = field(default_factory=lambda: Patience(PROBE_ROUNDS, PROBE_ROUNDS))
    _lost: Patience = field(default_factory=lambda: Patience(PROBE_ROUNDS))

    def __post_init__(self) -> None:
        # What draft models usually bring, until this one has shown what it does.
        self.modelled = Pace(memory=0.95)
        usual = self.verify_cost.nanoseconds(USUAL_DRAFT) + USUAL_DRAFT * self.draft_token_ns
        for _ in range(USUAL_ROUNDS):
            self.modelled.observe(USUAL_TOKENS, usual)

    @property
    def acceptance(self) -> float:
        """Running chance that the next level of a draft is accepted once the last one was."""
        return self._accepted / self._judged

    @property
    def plain_rate(self) -> float:
        """Tokens per nanosecond without drafts."""
        expected = max(self.verify_cost.nanoseconds(0), 1.0)
        return self._plain.after(PLAIN_ROUNDS, PLAIN_ROUNDS * expected)

    @property
    def rate(self) -> float:
        """Tokens per nanosecond of late, or without drafts where that is more.

        Of all rounds: one long draft that came true says how fast the next ones are only as long
        as they are drafted like it.
        """
        return max(self._pace.rate, self.plain_rate)

    @property
    def node_price(self) -> float:
        """Least probability with which one more node must be reached."""
        return self.rate * self.verify_cost.node_nanoseconds(self._nodes)

    def promise(self, tree: DraftTree) -> float:
        """Tokens per nanosecond that a finished draft promises, by its own estimates."""
        expected = 1 + sum(tree.path_probabilities())
        return expected / max(self.verify_cost.nanoseconds(len(tree)), 1.0)

    def next_budget(self, room: int) -> DraftBudget:
        """The budget of the next round; `room` is the most depth that makes sense."""
        nodes, depth = self.max_nodes, min(self.max_nodes, room)
        if depth <= 0:
            return NO_DRAFT
        if self.fixed:
            return DraftBudget(max_nodes=nodes, max_depth=depth)
        if self.gated and not (
            self._dear.takes(self._is_worth_its_price) and self._lost.takes(self._has_paid)
        ):
            return NO_DRAFT
        return DraftBudget(
            max_nodes=nodes,
            max_depth=depth,
            least_path_probability=min(1.0, self.node_price),
            tokens_per_second=self.rate * 1e9,
        )

    def observe(
        self, nodes: int, accepted: int, emitted: int, round_ns: int, *, modelled: bool = True
    ) -> None:
        """Takes in a round: `accepted` levels of a draft of `nodes`, the next one refused.

        `modelled`: a draft model made the draft.
        """
        self._pace.observe(emitted, round_ns)
        if not nodes and not modelled:
            self._plain.observe(emitted, round_ns)
            return
        self._drafted.observe(emitted, round_ns)
        if modelled:
            self.modelled.observe(emitted, round_ns)
        self._nodes = COST_MEMORY * self._nodes + (1 - COST_MEMORY) * nodes
        self._accepted = MEMORY * self._accepted + accepted
        self._judged = MEMORY * self._judged + min(accepted + 1, nodes)

    def observe_draft_cost(self, forwards: int, nanoseconds: int) -> None:
        """Takes in what a draft took, waiting included."""
        if forwards:
            share = (1 - COST_MEMORY) * nanoseconds / forwards
            self.draft_token_ns = COST_MEMORY * self.draft_token_ns + share

    @property
    def _is_worth_its_price(self) -> bool:
        """Whether even one drafted node is worth its time."""
        return self.acceptance > self.node_price + self.rate * self.draft_token_ns

    @property
    def _has_paid(self) -> bool:
        """Whether rounds with drafts were no slower than those without of late."""
        trusted = self._drafted.rounds >= TRUSTED_ROUNDS
        return not trusted or self._drafted.rate >= self.plain_rate
