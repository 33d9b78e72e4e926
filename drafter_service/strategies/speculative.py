"""Speculative decoding: the draft model writes a chain (Leviathan et al. 2211.17192, section 2).

It samples with the target's own noise, so its token equals the target's whenever the arg max of
both models' perturbed log-probabilities agrees (arXiv 2408.07978). It stops where another token
would not pay.
"""

from __future__ import annotations

from drafter_service.session import DrafterSession
from drafter_service.strategies.tree import TreeStrategy
from draftloop.runtime.forward import Task
from draftloop.speculation import SPECULATIVE
from draftloop.tree import DraftBudget, DraftEnd, DraftTree


class Speculative(TreeStrategy):
    """`speculative`: a chain as deep as pays, one draft forward per token.

    A chain is a tree whose nodes have one child each: the draft model's own token.
    """

    name = SPECULATIVE

    def __init__(self, session: DrafterSession) -> None:
        super().__init__(session, children=1)

    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """Drafts the chain; keys and values of accepted tokens stay in the slot."""
        budget = self.session.within_limits(budget)
        depth = min(budget.max_nodes, budget.max_depth)
        self.candidates.clear()
        return (
            yield from self.grow_draft(budget, together=1, most=depth, max_depth=depth, least=0.0)
        )

    def end_reason(self, full: bool, max_depth: int) -> DraftEnd:
        """DEPTH if the depth limit was reached; else a stop token, or nothing left to propose."""
        return DraftEnd.DEPTH if full else DraftEnd.TEXT
