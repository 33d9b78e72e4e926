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
        candidates = self.candidates
        self.proposed_nodes, self.end = 0, DraftEnd.NONE
        if not candidates.root_is_run:
            yield from self.prefill(whole=False)
        if not min(most, max_depth):
            return EMPTY_TREE
        candidates.plan(
            budget, together=together, most=most, max_depth=max_depth, least=least, delta=delta
        )
        candidates.offer(offer, max_depth)
        candidates.begin(reviewed)
        yield from self.grow()
        full = candidates.choose() == most
        self.proposed_nodes = candidates.drafted
        self.end = (
            DraftEnd.DRAFT_COST if candidates.is_too_expensive else self.end_reason(full, max_depth)
        )
        return candidates.build()

    @abstractmethod
    def end_reason(self, full: bool, max_depth: int) -> DraftEnd:
        """Why a draft ended if not for the price of another forward; `full`: all nodes used."""

    def grow(self) -> Task[None]:
        """Runs the ends and adds their best children, as planned, until nothing more pays."""
        candidates = self.candidates
        while candidates.has_ends:
            if passes := candidates.passes(self.economy):
                yield passes
                if not candidates.all_known:  # known ends need no rows
                    candidates.make_room()
            elif candidates.all_known:
                candidates.take_known()
                candidates.next_ends(self.economy)
            else:
                candidates.make_room()
                yield from self.expand()
                candidates.next_ends(self.economy)

    def expand(self, *, is_priced: bool = True) -> Task[None]:
        """Runs one forward over the ends and adds their best children.

        `is_priced`: what it costs and gains helps to decide on further forwards.
        """
        candidates, began = self.candidates, time.perf_counter()
        first = not candidates.root_is_run
        logits = yield candidates.next_forward()
        gain = candidates.take(logits)
        if is_priced:
            self.economy.observe(time.perf_counter() - began, gain, first=first)
