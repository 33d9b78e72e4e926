"""The drafter's part of `fused`: it reviews the offered tree and extends it where that pays.

One forward of the draft model scores the whole offered tree, re-weighs its nodes and adds the
model's own best children at every node: the vertical cascade (2312.11462, section 3.1), but with
the distributions kept. Then the best open ends grow, several per forward, while their expected gain
exceeds the price of the forward: OPT-Tree (2406.17276) with a price on nodes and forwards.

With several draft models in one drafter, each smaller model's draft is offered to the next larger
model. If the larger model is much more expensive, its one review replaces most of its own forwards.
Which models draft is decided by measurement (`drafter_service.ways`).

A drafter with a device of its own drafts ahead: it extends the tree while the target verifies it.
If the verdict ends at a node that was run, the subtree below that node starts the next draft.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from drafter_service.metrics import DRAFTED_BY
from drafter_service.session import DrafterSession
from drafter_service.strategies.tree import TreeStrategy
from drafter_service.ways import Way
from draftloop.runtime.forward import Task
from draftloop.speculation import FUSED
from draftloop.tree import EMPTY_TREE, DraftBudget, DraftEnd, DraftTree, Verdict

# Children that the draft model adds at one node: with shared noise, four contain the target's token
# 84 to 95 % of the time.
CHILDREN = 6
# Open ends that grow in one forward, and offered nodes that are reviewed in the first one.
TOGETHER, REVIEWED = 8, 24
# A larger model at first reviews the smaller one's draft if one of its forwards costs more than
# this many of the smaller one's: such a draft takes some six forwards of the smaller model and
# saves some four of the larger one.
REVIEW_COST_RATIO = 4
# Nodes with a smaller path probability are not drafted ahead.
MIN_REACH_AHEAD = 0.01
NO_PRICES = DraftBudget(max_nodes=0, max_depth=0)


class Fused(TreeStrategy):
    """`fused`, the drafter's part; the orchestrator has the free sources and sets the sizes."""

    name = FUSED

    def __init__(self, session: DrafterSession) -> None:
        super().__init__(session, CHILDREN)
        self._offer = EMPTY_TREE
        self._way = self._usual = Way.LARGER  # the last draft's, and the default
        self._smaller: Fused | None = None
        if (smaller := session.smaller) is not None:
            self._smaller = Fused(smaller)
            if session.model.forward_seconds > REVIEW_COST_RATIO * smaller.model.forward_seconds:
                self._usual = Way.BOTH

    def offer(self, tree: DraftTree) -> None:
        """Stores the tree that the next draft begins by reviewing."""
        self._offer = tree

    def prefill(self, *, whole: bool = True) -> Task[None]:
        """Prefills this model and, if `whole`, the smaller ones, as any of them may draft next."""
        yield from super().prefill(whole=whole)
        if self._smaller is not None and whole:
            yield from self._smaller.prefill()

    def observe(self, new_token_ids: Sequence[int], verdict: Verdict | None) -> None:
        """Lets the models that made the last draft learn from its verdict."""
        if self._way is not Way.SMALLER:
            super().observe(new_token_ids, verdict)
        if self._smaller is not None and self._way is not Way.LARGER:
            self._smaller.observe(new_token_ids, verdict)

    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """Returns the offered and the model's own nodes that are worth their verification."""
        if self._smaller is None:
            return (yield from self._draft(budget))
        ways, began = self.session.experience.ways, time.perf_counter()
        self._way, offered = ways.next(self._usual), _gain(self._offer, budget)
        tree = yield from self._draft_by(self._way, self._smaller, budget)
        spent = budget.tokens_per_second * (time.perf_counter() - began)
        ways.observe(self._way, _gain(tree, budget) - offered - spent)
        DRAFTED_BY[self._way].inc()
        return tree

    def _draft_by(self, way: Way, smaller: Fused, budget: DraftBudget) -> Task[DraftTree]:
        """Drafts by this model, the smaller one, or both: then this one reviews the other's."""
        of_smaller = 0
        if way is not Way.LARGER:
            smaller.offer(self._offer)
            self._offer = yield from smaller.propose(budget)
            of_smaller, self.end = smaller.proposed_nodes, smaller.end
        if way is Way.SMALLER:
            tree, self._offer, self.proposed_nodes = self._offer, EMPTY_TREE, of_smaller
            return tree
        experience = self.session.experience
        alone = way is Way.LARGER
        self.candidates.set_calibration(
            experience.calibration if alone else experience.ways.further
        )
        tree = yield from self._draft(budget)
        self.proposed_nodes += of_smaller
        return tree

    def _draft(self, budget: DraftBudget) -> Task[DraftTree]:
        """This model's draft, which begins with a review of the offered tree."""
        budget = self.session.within_limits(budget)
        offer, self._offer = self._offer, EMPTY_TREE
        self.candidates.advance()
        most, depth, least = budget.max_nodes, budget.max_depth, budget.least_path_probability
        return (
            yield from self.grow_draft(
                budget, together=TOGETHER, most=most, max_depth=depth, least=least,
                offer=offer, reviewed=REVIEWED,
            )
        )  # fmt: skip

    def end_reason(self, full: bool, max_depth: int) -> DraftEnd:
        """NODES if the node limit was reached; else further nodes are not worth verifying."""
        return DraftEnd.NODES if full else DraftEnd.VERIFY_COST

    def draft_ahead(self, should_continue: Callable[[], bool]) -> Task[None]:
        """Extends the last tree at its likeliest ends, as the verdict may stop at any node."""
        if self._smaller is not None and self._way is Way.SMALLER:
            yield from self._smaller.draft_ahead(should_continue)
            return
        candidates, is_complete = self.candidates, False
        depth, most = self.session.room, TOGETHER * CHILDREN
        candidates.plan(
            NO_PRICES, together=TOGETHER, most=most, max_depth=depth, least=MIN_REACH_AHEAD
        )
        try:
            while candidates.root_is_run and should_continue():
                candidates.open_all_ends(TOGETHER)
                if not candidates.has_ends:
                    break
                if candidates.all_known:
                    candidates.take_known()
                else:  # at any price, so it says nothing about forwards of drafts
                    yield from self.expand(is_priced=False)
            is_complete = True
        finally:
            if not is_complete:  # the tree has nodes marked as run whose forward did not complete
                candidates.clear()


def _gain(tree: DraftTree, budget: DraftBudget) -> float:
    """Expected accepted tokens of a draft, less the price of its nodes."""
    gains = (reach - budget.least_path_probability for reach in tree.path_probabilities())
    return sum(gain for gain in gains if gain > 0)
