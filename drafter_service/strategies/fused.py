"""The drafter's part of `fused`: it reviews what cheaper sources offer and grows where it pays.

One forward of the draft model scores a whole offered tree, re-weighs its nodes and adds its own
best siblings at every place: the vertical cascade (2312.11462, section 3.1) without throwing the
distributions away. Then the best open ends grow, several in a forward, while what they promise
exceeds what the forward costs: OPT-Tree (2406.17276) with nodes and forwards priced.

With several draft models in one drafter each has the same part: what the next smaller one drafts is
offered to the larger one, whose one review then replaces most of its own forwards, where these are
much dearer. Whether another way does better is measured.

A drafter with a device of its own drafts ahead: it grows the tree on while the target verifies it.
Where the verdict ends at a node that was run, what grew behind that is the next draft's beginning.
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

# Children of the draft model at one node: with shared noise four hold the target's token 84 to 95 %
# of the time.
CHILDREN = 6
# Open ends that grow in one forward, and offered nodes that are reviewed in one.
TOGETHER, REVIEWED = 8, 24
# How many forwards of the smaller model one of the larger must cost for the larger to review the
# smaller one's draft, at first: that takes some six of its forwards and saves some four.
REVIEW_COST_RATIO = 4
# Reach below which nothing is drafted ahead.
LEAST_AHEAD = 0.01
NO_PRICES = DraftBudget(max_nodes=0, max_depth=0)


class Fused(TreeStrategy):
    """`fused`, as far as it needs the draft model; sources and sizes are the orchestrator's."""

    name = FUSED

    def __init__(self, session: DrafterSession) -> None:
        super().__init__(session, CHILDREN)
        self._offer = EMPTY_TREE
        self._way = self._usual = Way.LARGER  # the last draft's, and that of most
        self._smaller: Fused | None = None
        if (smaller := session.smaller) is not None:
            self._smaller = Fused(smaller)
            if session.model.forward_seconds > REVIEW_COST_RATIO * smaller.model.forward_seconds:
                self._usual = Way.BOTH

    def offer(self, tree: DraftTree) -> None:
        """The next draft begins with a review of this."""
        self._offer = tree

    def prefill(self, *, whole: bool = True) -> Task[None]:
        """The same; the whole text through every model, as none knows who drafts."""
        yield from super().prefill(whole=whole)
        if self._smaller is not None and whole:
            yield from self._smaller.prefill()

    def observe(self, new_token_ids: Sequence[int], verdict: Verdict | None) -> None:
        """Only the models that made the last draft learn from its verdict."""
        if self._way is not Way.SMALLER:
            super().observe(new_token_ids, verdict)
        if self._smaller is not None and self._way is not Way.LARGER:
            self._smaller.observe(new_token_ids, verdict)

    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """Offer and own nodes merged, those that are worth their verification."""
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
        """That of the smaller model, of this one, or of this one on top of the smaller one's."""
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
        self.candidates.learn_by(experience.calibration if alone else experience.ways.further)
        tree = yield from self._draft(budget)
        self.proposed_nodes += of_smaller
        return tree

    def _draft(self, budget: DraftBudget) -> Task[DraftTree]:
        """That of this model, which begins with a review of what is offered."""
        budget = self.session.within_limits(budget)
        offer, self._offer = self._offer, EMPTY_TREE
        self.candidates.advance()
        most, depth, least = budget.max_nodes, budget.max_depth, budget.least_path_probability
        return (
            yield from self.grown(
                budget, together=TOGETHER, most=most, max_depth=depth, least=least,
                offer=offer, reviewed=REVIEWED,
            )
        )  # fmt: skip

    def ended(self, full: bool, max_depth: int) -> DraftEnd:
        """Further nodes would not be worth their verification, unless there was no room."""
        return DraftEnd.NODES if full else DraftEnd.VERIFY_COST

    def ahead(self, wanted: Callable[[], bool]) -> Task[None]:
        """Grows the last tree on, wherever the target may leave it."""
        if self._smaller is not None and self._way is Way.SMALLER:
            yield from self._smaller.ahead(wanted)
            return
        known, ended = self.candidates, False
        depth, most = self.session.room, TOGETHER * CHILDREN
        known.plan(NO_PRICES, together=TOGETHER, most=most, max_depth=depth, least=LEAST_AHEAD)
        try:
            while known.root_is_run and wanted():
                known.every_end(TOGETHER)
                if not known.grows:
                    break
                if known.all_known:
                    known.take_known()
                else:
                    yield from self.expand()
            ended = True
        finally:
            if not ended:  # nodes whose forward never ended stand in the tree
                known.clear()


def _gain(tree: DraftTree, budget: DraftBudget) -> float:
    """Tokens that a draft is expected to bring in, beyond those that its nodes are worth."""
    gains = (reach - budget.least_path_probability for reach in tree.path_probabilities())
    return sum(gain for gain in gains if gain > 0)
