"""How much to draft next: what nodes and draft forwards must bring in to be worth their time.

Throughput is greatest when nothing is done that brings in fewer tokens than the same time brings
in anyway. At a rate of R tokens/s, a node reached with probability P pays if
P > R x (seconds that one more node costs the verifier), and a draft forward pays if the tokens that
it promises exceed R x its seconds. This is OPT-Tree's threshold (2406.17276, section 3.3), applied
before the cost is incurred. A shared forward keeps other sessions waiting as well: for it, R is the
rate of all of them together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from draftloop.pace import Pace
from draftloop.tree import DraftBudget, DraftTree
from orchestrator.costs import VerifyCost
from orchestrator.selection import NO_OFFER, Offer, Selection, select

NODES_MEMORY, SHARED_PACE_MEMORY = 0.8, 0.99
NO_DRAFT = DraftBudget(max_nodes=0, max_depth=0)
# A request's pace starts as if so many average rounds of similar requests had been its own: its
# own first rounds say little.
SHARED_PACE_ROUNDS = 6
# The pace without drafts starts as if so many rounds had taken the expected time of their forward.
PLAIN_ROUNDS = 2


class Prices(NamedTuple):
    """What a round's time is worth, and what a node must bring in; rates in tokens per nanosecond.

    `plain_rate`: this request's rate in rounds without drafts.
    `rate`: this request's rate in all recent rounds, or `plain_rate` if that is higher. All kinds
    of rounds count: one long draft that came true does not say how fast the next rounds will be.
    `others`: tokens that other sessions emit in the same time, as a multiple of this request's,
    while no prompt is being computed.
    `shared_rate`: `rate` plus the rate of all other sessions that a verification keeps waiting.
    This request's pace is the observed one, which includes the time of other requests' prompts. The
    other sessions' pace excludes prompts, which take the same time whatever is drafted.
    `node_price`: minimum path probability of a node that is worth drafting. It is a lower bound;
    `select` decides which nodes are verified by comparing all sizes.
    """

    plain_rate: float
    rate: float
    others: float
    shared_rate: float
    node_price: float


@dataclass(slots=True)
class Controller:
    """Prices the nodes of the next draft. Whether to draft at all is up to a `DraftChoice`.

    `fixed`: drafts are as large as allowed, and time has no price.
    `verify_uncut`: drafts are verified uncut, since the request states their size.
    `drafter_shares_processor`: the draft model runs on the target's processors.
    `shared_pace`: the pace of all similar requests; this controller updates it.
    """

    max_nodes: int
    verify_cost: VerifyCost
    fixed: bool = False
    verify_uncut: bool = False
    drafter_shares_processor: bool = False
    shared_pace: Pace = field(default_factory=lambda: Pace(memory=SHARED_PACE_MEMORY))
    _pace: Pace = field(default_factory=lambda: Pace(memory=0.95))  # of all rounds
    _plain: Pace = field(default_factory=lambda: Pace(memory=0.9))
    _nodes: float = 0.0
    _prices: Prices | None = None

    @property
    def prices(self) -> Prices:
        """Prices for the next round, computed when the previous one was observed."""
        return self._prices or self._current_prices()

    def draft_price(self, waited_ns: float, work_ns: float) -> float:
        """Tokens that the draft model must bring in to pay for its time.

        `waited_ns`: how long the request waits for it. `work_ns`: the same without queueing behind
        other requests; if the draft model runs on the target's processors, this work delays the
        other sessions.
        """
        prices = self.prices
        others_ns = prices.others * work_ns if self.drafter_shares_processor else 0.0
        return prices.rate * (waited_ns + others_ns)

    def _current_prices(self) -> Prices:
        cost = self.verify_cost
        share_without_prompts = 1 - cost.load.prompt_share
        expected_ns = max(cost.nanoseconds(0), 1.0) / share_without_prompts
        plain = self._plain.rate_with(PLAIN_ROUNDS, PLAIN_ROUNDS * expected_ns)
        rate = 0.0 if self.fixed else max(self._pace_with_prior(), plain)
        other_sessions = (cost.load.sessions - 1) / share_without_prompts
        shared_rate = rate * (1 + other_sessions)
        return Prices(
            plain_rate=plain,
            rate=rate,
            others=other_sessions,
            shared_rate=shared_rate,
            node_price=shared_rate * cost.node_nanoseconds(self._nodes, self.max_nodes),
        )

    def _pace_with_prior(self) -> float:
        shared = self.shared_pace
        tokens, time = shared.tokens_per_round, shared.time_per_round
        return self._pace.rate_with(SHARED_PACE_ROUNDS * tokens, SHARED_PACE_ROUNDS * time)

    def worth(self, offer: Offer = NO_OFFER) -> float:
        """Expected tokens of a round, minus those that its time brings in anyway.

        `offer`: the draft that the round verifies, which is there already and takes no more time to
        make.
        """
        time_ns = self.verify_cost.nanoseconds(offer.nodes)
        return 1 + offer.tokens - self.prices.shared_rate * time_ns

    def select(self, tree: DraftTree) -> Selection:
        """The part of a draft that is worth verifying."""
        rate = 0.0 if self.verify_uncut else self.prices.shared_rate
        return select(tree, self.verify_cost, rate, self.max_nodes)

    def limit(self, nodes: int) -> None:
        """Caps the size of drafts from now on: another verifier may take fewer nodes."""
        self.max_nodes = min(self.max_nodes, nodes)
        self._prices = None

    def next_budget(self, room: int) -> DraftBudget:
        """The budget of the next round; `room` is the maximum depth that makes sense."""
        nodes, depth = self.max_nodes, min(self.max_nodes, room)
        if depth <= 0:
            return NO_DRAFT
        if self.fixed:
            return DraftBudget(max_nodes=nodes, max_depth=depth)
        return DraftBudget(
            max_nodes=nodes,
            max_depth=depth,
            least_path_probability=min(1.0, self.prices.node_price),
            tokens_per_second=self.prices.rate * 1e9,
        )

    def observe(
        self, nodes: int, emitted: int, round_ns: int, *, used_draft_model: bool = True
    ) -> None:
        """Records a round that verified `nodes` nodes and emitted `emitted` tokens.

        `used_draft_model`: a draft model made the draft.
        """
        self._pace.observe(emitted, round_ns)
        self.shared_pace.observe(emitted, round_ns)
        if nodes or used_draft_model:
            self._plain.fade()
            self._nodes = NODES_MEMORY * self._nodes + (1 - NODES_MEMORY) * nodes
        else:
            self._plain.observe(emitted, round_ns)
        self._prices = self._current_prices()
