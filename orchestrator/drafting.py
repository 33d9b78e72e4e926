"""Where a request's drafts come from: nowhere, beside the loop, or the drafter service."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from draftloop.errors import Unavailable
from draftloop.pieces import in_pieces
from draftloop.tree import (
    EMPTY_TREE,
    Draft,
    DraftBudget,
    DraftEnd,
    DraftTree,
    ServiceTimings,
    Verdict,
)
from orchestrator.budget import NO_DRAFT, Controller
from orchestrator.choice import DraftChoice, ModelChoice
from orchestrator.figures import SpeculationFigures
from orchestrator.hindsight import Alternative
from orchestrator.outcome import RoundOutcome
from orchestrator.selection import NO_OFFER, Offer, Selection, cut
from orchestrator.sources import Source
from phrase_store.session import PhraseSession


class Proposed(NamedTuple):
    """A draft that a choice wanted, until its round has ended: see `DraftChoice.observe`.

    `draft_ns`: for how long it was waited for. `offer`: what free sources had in its place;
    `alternative`: the same where the round is looked back at, else None.
    """

    draft_ns: int
    offer: Offer
    alternative: Alternative | None = None


class Drafting:
    """Drafts from `source` alone, in the rounds that `choice` takes; without one it never drafts.

    A request calls `open` once, then `observe` for the verifier's first token, then `propose` and
    `observe` in every round, and at last `close`. `observe_delay` and `learn` follow an `observe`
    where they say something, in moments in which nobody waits.
    """

    def __init__(
        self,
        source: Source | None,
        phrases: PhraseSession | None,
        choice: DraftChoice | None = None,
    ) -> None:
        self._source = source
        self._phrases = phrases
        self._choice = choice
        self._proposed: Proposed | None = None  # in the round under way

    def open(self, committed: Sequence[int]) -> None:
        """Begins to prepare the first draft while the verifier prefills; returns at once."""

    async def read(self) -> None:
        """Takes in the prompt, in pieces between which others have the event loop.

        The first `observe` or `propose` takes in at once what is left of it.
        """
        if self._source is not None:
            await in_pieces(self._source.reading())

    async def propose(
        self, committed: Sequence[int], verdict: Verdict | None, budget: DraftBudget
    ) -> Draft:
        """A draft within the budget. `verdict` is the one on the last draft, if there was one."""
        if self._choice is None or not budget.max_nodes or not self._choice.drafts():
            return Draft(tree=EMPTY_TREE, committed_length=len(committed))
        draft = self._choice.cut(self._own_draft(committed, budget))
        if len(draft.tree):
            self._proposed = Proposed(draft.timings.service_ns, NO_OFFER)
        return draft

    def observe(self, outcome: RoundOutcome) -> None:
        """Takes in what was committed, and of a draft that was judged what it brought."""
        draft, verdict = outcome.draft, outcome.verdict
        proposed, self._proposed = self._proposed, None
        if self._source is not None:
            self._source.observe(outcome.committed, outcome.new, draft, verdict)
        if self._choice is not None and proposed is not None and not outcome.draft_is_lost:
            accepted = len(verdict.accepted_nodes)
            self._choice.observe(accepted, len(draft), proposed.draft_ns, proposed.offer)

    def observe_delay(self, nanoseconds: float) -> None:
        """Takes in how much longer than expected the observed round of a draft model's draft took.

        Its draft apart; negative where it was quicker.
        """
        if self._choice is not None:
            self._choice.observe_delay(nanoseconds)

    def learn(self, context: Sequence[int], draft: DraftTree, verdict: Verdict) -> None:
        """Harvests phrases, and keeps successors that the target told of the draft's tokens.

        For quiet moments.
        """
        if self._phrases is not None:
            self._phrases.learn(context, draft, verdict)
            self._phrases.recycle(context[-1], draft, verdict)

    async def close(self) -> None:
        """Frees what `open` took."""

    def _own_draft(self, committed: Sequence[int], budget: DraftBudget) -> Draft:
        began = time.perf_counter_ns()
        tree = EMPTY_TREE
        if self._source is not None and budget.max_nodes:
            tree = self._source.propose(committed, budget)
        spent = ServiceTimings(service_ns=time.perf_counter_ns() - began)
        end = _end(tree, budget)
        return Draft(tree=tree, committed_length=len(committed), timings=spent, end=end)


class ModelDrafting(Drafting):
    """Drafts from the drafter too, in the rounds that `choice` takes; without one never.

    `offers`: `source` drafts in every round, and the drafter is asked where its draft is expected
    to be worth more than that one. Otherwise `source` helps out where the drafter is gone.
    """

    _choice: ModelChoice | None

    def __init__(
        self,
        source: Source | None,
        phrases: PhraseSession | None,
        choice: ModelChoice | None,
        *,
        controller: Controller,
        figures: SpeculationFigures,
        offers: bool,
    ) -> None:
        super().__init__(source, phrases, choice)
        self._controller = controller
        self._figures = figures
        self._offers = offers
        self._unjudged = False  # the last round's draft was the drafter's
        self._untold: Verdict | None = None  # on its last draft, until it is asked again

    def open(self, committed: Sequence[int]) -> None:
        """Lets the drafter prefill, unless it would be for nothing by what is known."""
        if self._choice is not None:
            self._choice.open(committed)

    async def propose(
        self, committed: Sequence[int], verdict: Verdict | None, budget: DraftBudget
    ) -> Draft:
        """The draft that is worth most: none, that of free sources, or the drafter's."""
        if self._unjudged:
            self._untold, self._unjudged = verdict, False
        free, chosen = self._free(committed, budget if self._offers else NO_DRAFT)
        model = self._choice if budget.max_nodes and not self._outdone(chosen.offer) else None
        if model is None or not model.asks(committed, chosen.offer):
            return self._without_model(free, chosen)
        looks_back = self._offers and self._phrases is not None and model.looks_back()
        began = time.perf_counter_ns()
        heard, self._untold = self._untold, None
        try:
            draft = await self._with_model(model, committed, heard, budget, free)
        except Unavailable:
            self._figures.fallback_rounds += 1
            if not self._offers:
                free, chosen = self._free(committed, budget)
            return self._without_model(free, chosen)
        self._unjudged = True
        draft = model.cut(draft)
        waited_ns, alternative = time.perf_counter_ns() - began, None
        if looks_back:
            own_ns = free.timings.service_ns
            alternative = Alternative(chosen, budget, own_ns, began_ns=began - own_ns)
        self._proposed = Proposed(waited_ns, chosen.offer, alternative)
        return draft

    def observe(self, outcome: RoundOutcome) -> None:
        """Takes in what was committed, and what it would have taken without the draft model.

        Not of a round whose time is others' business, or whose draft was lost.
        """
        alternative = self._proposed.alternative if self._proposed is not None else None
        if alternative is not None and not (outcome.draft_is_lost or outcome.is_shared):
            self._look_back(alternative, outcome)
        super().observe(outcome)

    def _look_back(self, alternative: Alternative, outcome: RoundOutcome) -> None:
        """Before the round's tokens are phrases of the request."""
        assert self._choice is not None and self._phrases is not None, "there is an alternative"
        took = time.perf_counter_ns() - alternative.began_ns
        without = alternative.nanoseconds(
            outcome.committed, outcome.new, self._phrases, self._controller
        )
        self._choice.look_back(without - took)

    async def close(self) -> None:
        """Frees the drafter's session."""
        if self._choice is not None:
            await self._choice.drafter.close()

    def _free(self, committed: Sequence[int], budget: DraftBudget) -> tuple[Draft, Selection]:
        """The draft of free sources, and what of it is worth verifying."""
        draft = self._own_draft(committed, budget)
        return draft, self._controller.select(draft.tree)

    def _outdone(self, offer: Offer) -> bool:
        """Whether free sources promise more than the drafter, where nobody asks for prices."""
        choice = self._choice
        return choice is not None and self._controller.fixed and choice.advantage(offer) < 0

    async def _with_model(
        self,
        model: ModelChoice,
        committed: Sequence[int],
        heard: Verdict | None,
        budget: DraftBudget,
        free: Draft,
    ) -> Draft:
        """The drafter's draft; `heard` is the verdict on its last one. Raises Unavailable."""
        return await model.drafter.propose(committed, heard, budget)

    def _without_model(self, draft: Draft, chosen: Selection) -> Draft:
        self._figures.phrase_rounds += len(chosen.tree) > 0
        return cut(draft, chosen)


def _end(tree: DraftTree, budget: DraftBudget) -> DraftEnd:
    """Why a source that reads tokens alone proposed no more than this."""
    if not len(tree):
        return DraftEnd.NONE
    if len(tree) >= budget.max_nodes:
        return DraftEnd.NODES
    return DraftEnd.DEPTH if max(tree.depths()) >= budget.max_depth else DraftEnd.TEXT
