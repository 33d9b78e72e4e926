"""Prompt lookup as a strategy: copies from the request's own text, no forward at all."""

from __future__ import annotations

from collections.abc import Sequence

from drafter_service.session import DrafterSession
from drafter_service.strategies.base import Strategy
from draftloop.prompt_lookup import PromptIndex
from draftloop.runtime.forward import Task
from draftloop.tree import DraftBudget, DraftTree, Verdict


class PromptLookup(Strategy):
    """`prompt_lookup`: what followed the same last tokens earlier in prompt or output."""

    name = "prompt_lookup"

    def __init__(self, session: DrafterSession) -> None:
        super().__init__(session)
        self._index = PromptIndex()
        self._index.extend(session.committed)

    def observe(self, new_token_ids: Sequence[int], verdict: Verdict | None) -> None:
        """Indexes the new tokens."""
        self._index.extend(new_token_ids)

    def propose(self, budget: DraftBudget) -> Task[DraftTree]:
        """A copied chain, empty where nothing matches."""
        budget = self.session.within_limits(budget)
        return self._index.propose(min(budget.max_nodes, budget.max_depth))
        yield
