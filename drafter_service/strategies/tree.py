"""Base of the strategies that grow a tree by forwards of the draft model."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence

from drafter_service.candidates import NO_DELTA, Candidates
from drafter_service.economy import Economy
from drafter_service.session import DrafterSession
from drafter_service.strategies.base import Strategy
from draftloop.runtime.forward import Task
from draftloop.tree import EMPTY_TREE, DraftBudget, DraftEnd, DraftTree, Verdict


class TreeStrategy(Strategy):
    """Prefills, grows a tree and learns from verdicts; subclasses set the limits of growth.

    `children`: maximum number of children of one node.
    """

    def __init__(self, session: DrafterSession, children: int) -> None:
        super().__init__(session)
        self.candidates = Candidates(session, children)
        self.economy = Economy(session.model.forward_seconds)

    def observe(self, new_token_ids: Sequence[int], verdict: Verdict | None) -> None:
        """Calibrates by the target's tokens, also for drafted nodes that were not verified."""
        if verdict is not None:
            self.candidates.judge(new_token_ids)

    def grow_draft(
        self, budget: DraftBudget, *, together: int, most: int, max_depth: int, least: float,
        delta: float = NO_DELTA, offer: DraftTree = EMPTY_TREE, reviewed: int = 0,
    ) -> Task[DraftTree]:  # fmt: skip
        """Grows the current candidates as planned (`Candidates.plan`) and returns the draft.

        Growth begins with the nodes of `offer`; the first forward reviews the `reviewed` best of
        them. Keys and values of accepted nodes stay in the slot.
        """
        known = self.candidates
        self.proposed_nodes, self.end = 0, DraftEnd.NONE
        if not known.root_is_run:
            yield from self.prefill(whole=False)
        if not min(most, max_depth):
            return EMPTY_TREE
        known.plan(
            budget, together=together, most=most, max_depth=max_depth, least=least, delta=delta
        )
        known.offer(offer, max_depth)
        known.begin(reviewed)
        yield from self.grow()
        full = known.choose() == most
        self.proposed_nodes = known.drafted
        self.end = (
            DraftEnd.DRAFT_COST if known.is_too_expensive else self.end_reason(full, max_depth)
        )
        return known.build()

    @abstractmethod
    def end_reason(self, full: bool, max_depth: int) -> DraftEnd:
        """Why a draft ended if not for the price of another forward; `full`: all nodes used."""

    def grow(self) -> Task[None]:
        """Runs the ends and adds their best children, as planned, until nothing more pays."""
        known = self.candidates
        while known.has_ends:
            if passes := known.passes(self.economy):
                yield passes
                if not known.all_known:  # known ends need no rows
                    known.make_room()
            elif known.all_known:
                known.take_known()
                known.next_ends(self.economy)
            else:
                known.make_room()
                yield from self.expand()
                known.next_ends(self.economy)

    def expand(self) -> Task[None]:
        """Runs one forward over the ends and adds their best children."""
        known, began = self.candidates, time.perf_counter()
        first = not known.root_is_run
        logits = yield known.run()
        gain = known.take(logits)
        self.economy.observe(time.perf_counter() - began, gain, first=first)
