"""Speculative decoding: the draft model writes a chain (Leviathan et al. 2211.17192, section 2).

It chooses with the target's own noise, so its token is the target's as often as the two models'
perturbed arg max agree (arXiv 2408.07978). It stops where another token would not pay.
"""

from __future__ import annotations

from drafter_service.session import DrafterSession
from drafter_service.strategies.tree import TreeStrategy
from draftloop.runtime.forward import Task
from draftloop.speculation import SPECULATIVE
from draftloop.tree import EMPTY_TREE, DraftBudget, DraftEnd, DraftTree


class Speculative(TreeStrategy):
    """`speculative`: a chain as deep as pays, one draft forward per token.

    A chain is a tree whose nodes have one child each: the draft model's own token.
    """

    name = SPECULATIVE

    def __init__(self, session: DrafterSession) -> None:
        super().__init__(session, children=1)

    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """The chain; keys and values of what came true are kept."""
        budget = self.session.within_limits(budget)
        depth = min(budget.max_nodes, budget.max_depth)
        known = self.candidates
        known.clear()
        yield from self.prefill(whole=False)
        if not depth:
            return EMPTY_TREE
        known.plan(budget, together=1, most=depth, max_depth=depth, least=0.0)
        known.begin()
        yield from self.grow()
        chosen = known.choose()
        self.proposed_nodes = known.drafted
        self.end = self._end(chosen == depth)
        return known.build()

    def _end(self, full: bool) -> DraftEnd:
        if self.candidates.too_dear:
            return DraftEnd.DRAFT_COST
        return DraftEnd.DEPTH if full else DraftEnd.TEXT
