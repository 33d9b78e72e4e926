"""The drafter's part of `fused`: it reviews what cheaper sources offer and grows where it pays.

One forward of the draft model scores a whole offered tree, re-weighs its nodes and adds its own
best siblings at every place: the vertical cascade (2312.11462, section 3.1) without throwing the
distributions away. Then the best open ends grow, several in a forward, while what they promise
exceeds what the forward costs: OPT-Tree (2406.17276) with nodes and forwards priced.

A drafter with a device of its own drafts ahead: it grows the tree on while the target verifies it.
Where the verdict ends at a node that was run, what grew behind that is the next draft's beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from drafter_service.candidates import Candidate, Candidates
from drafter_service.session import DrafterSession
from drafter_service.strategies.tree import TreeStrategy
from draftloop.runtime.forward import Task
from draftloop.speculation import FUSED
from draftloop.tree import EMPTY_TREE, ROOT, DraftBudget, DraftEnd, DraftTree

# Children of the draft model at one node: with shared noise four hold the target's token 84 to 95 %
# of the time (ALGORITHMS section 0).
CHILDREN = 6
# Open ends that grow in one forward, and offered nodes that are reviewed in one.
TOGETHER, REVIEWED = 8, 24
# Reach below which nothing is drafted ahead.
LEAST_AHEAD = 0.01


class Fused(TreeStrategy):
    """`fused`, as far as it needs the draft model; sources and sizes are the orchestrator's."""

    name = FUSED

    def __init__(self, session: DrafterSession) -> None:
        super().__init__(session)
        self._offer = EMPTY_TREE

    def offer(self, tree: DraftTree) -> None:
        """The next draft begins with a review of this."""
        self._offer = tree

    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """Offer and own nodes merged, those that are worth their verification."""
        budget = self.session.within_limits(budget)
        known = self.candidates = self.candidates.advanced()
        if known.said is None:
            yield from self.prefill(whole=False)
        if not min(budget.max_nodes, budget.max_depth):
            return EMPTY_TREE
        most, least = budget.max_nodes, budget.least_path_probability
        self._take_offer(budget)
        ends = [ROOT]
        if known.said is None:  # what is offered goes with the root
            reviewed = known.best(min(REVIEWED, most), least)
            ends += sorted(known.open_ends(reviewed, budget.max_depth))
        while ends:
            yield from self.expand(ends, children=CHILDREN, most=most, least=least)
            ends = self._ends_that_pay(budget)
            if known.said_before(ends) is None and len(ends) > self.room:
                known.retain(known.best(most, least))
        self.proposed_nodes = known.drafted
        return known.build(known.best(most, least))

    def ahead(self, wanted: Callable[[], bool]) -> Task[None]:
        """Grows the last tree on, wherever the target may leave it."""
        known, ended = self.candidates, False
        try:
            while known.said is not None and wanted():
                ends = known.open_ends(known.best(len(known), LEAST_AHEAD), self.session.room)
                ends = self._run_before(ends) or ends[: min(TOGETHER, self.room)]
                if not ends:
                    break
                most = TOGETHER * CHILDREN
                yield from self.expand(
                    sorted(ends), children=CHILDREN, most=most, least=LEAST_AHEAD
                )
            ended = True
        finally:
            if not ended:  # nodes whose forward never ended stand in the tree
                self.candidates = Candidates(self.session)

    def _run_before(self, ends: Sequence[int]) -> list[int]:
        """Those whose children cost no forward."""
        return [node for node in ends if self.candidates.nodes[node].said is not None]

    def _take_offer(self, budget: DraftBudget) -> None:
        """Adds the offered nodes as far as they are within the budget's depth."""
        offer, self._offer = self._offer, EMPTY_TREE
        reached, places = offer.path_probabilities(), {ROOT: ROOT}
        for node, depth in enumerate(offer.depths()):
            if depth <= budget.max_depth:
                parent = places[offer.parents[node]]
                source, estimate = offer.sources[node], offer.estimates[node]
                offered = Candidate(
                    offer.token_ids[node], parent, depth, source, estimate, reached[node]
                )
                places[node] = self.candidates.add(offered)

    def _ends_that_pay(self, budget: DraftBudget) -> list[int]:
        """Open ends for the next forward; none where it would bring in less than it costs."""
        known = self.candidates
        best = known.best(budget.max_nodes, budget.least_path_probability)
        ends = known.open_ends(best, budget.max_depth)
        if before := self._run_before(ends):
            return sorted(before)
        ends = ends[:TOGETHER]
        if not ends:
            full = len(best) == budget.max_nodes
            self.end = DraftEnd.NODES if full else DraftEnd.VERIFY_COST
        elif not self.economy.pays(sum(known.reach(node) for node in ends), budget):
            self.end = DraftEnd.DRAFT_COST
            return []
        return sorted(ends)
