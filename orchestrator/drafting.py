"""Where a request's drafts come from: nowhere, free sources in this process, or the drafter."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from draftloop.errors import Unavailable
from draftloop.pieces import run_in_pieces
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
    """The current round's draft, if a choice asked for it; kept for `DraftChoice.observe`.

    `draft_ns`: how long the round waited for it.
    `offer`: what free sources offered instead.
    `alternative`: details of that offer if the round is to be judged in hindsight, else None.
    """

    draft_ns: int
    offer: Offer
    alternative: Alternative | None = None


class Drafting:
    """Drafts from `source` alone, in the rounds that `choice` picks; without a choice, never.

    A request calls `open` once, then `observe` for the verifier's first token, then `propose` and
    `observe` in every round, and finally `close`. `observe_delay` and `learn` may follow an
    `observe`; they are called in idle moments, so that they delay nothing.
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
        self._proposed: Proposed | None = None  # in the current round

    def open(self, committed: Sequence[int]) -> None:
        """Starts preparing the first draft while the verifier prefills; returns immediately."""

    async def index_prompt(self) -> None:
        """Indexes the prompt in pieces, between which other tasks can run on the event loop.

        The first `observe` or `propose` indexes whatever is left in one go.
        """
        if self._source is not None:
            await run_in_pieces(self._source.index_steps())

    async def propose(self, committed: Sequence[int], budget: DraftBudget) -> Draft:
        """Returns a draft within the budget."""
        if self._choice is None or not budget.max_nodes or not self._choice.should_draft():
            return Draft(tree=EMPTY_TREE, committed_length=len(committed))
        draft = self._choice.cut(self._draft_from_source(committed, budget))
        if len(draft.tree):
            self._proposed = Proposed(draft.timings.service_ns, NO_OFFER)
        return draft

    def observe(self, outcome: RoundOutcome) -> None:
        """Learns from a finished round: its tokens and, if its draft was judged, its success."""
        proposed, self._proposed = self._proposed, None
        if self._source is not None:
            self._source.observe(outcome)
        if self._choice is not None and proposed is not None and not outcome.draft_is_lost:
            accepted, nodes = len(outcome.verdict.accepted_nodes), len(outcome.draft)
            self._choice.observe(accepted, nodes, proposed.draft_ns, proposed.offer)

    def observe_delay(self, nanoseconds: float) -> None:
        """Records how much longer than expected the last observed round took.

        Called for rounds with a draft model's draft, whose own time is not counted. Negative if the
        round was quicker than expected.
        """
        if self._choice is not None:
            self._choice.observe_delay(nanoseconds)

    def learn(self, context: Sequence[int], draft: DraftTree, verdict: Verdict) -> None:
        """Harvests phrases, and stores the successors that the target reported.

        `context` ends where the draft began. To be called in idle moments.
        """
        if self._phrases is not None:
            self._phrases.learn(context, draft, verdict)
            self._phrases.recycle(context[-1], draft, verdict)

    async def close(self) -> None:
        """Releases what `open` acquired."""

    def _draft_from_source(self, committed: Sequence[int], budget: DraftBudget) -> Draft:
        began_ns = time.perf_counter_ns()
        tree = EMPTY_TREE
        if self._source is not None and budget.max_nodes:
            tree = self._source.propose(committed, budget)
        timings = ServiceTimings(service_ns=time.perf_counter_ns() - began_ns)
        end = _draft_end(tree, budget)
        return Draft(tree=tree, committed_length=len(committed), timings=timings, end=end)


class ModelDrafting(Drafting):
    """Asks the drafter as well, in the rounds that `choice` picks; without a choice, never.

    With `always_offers`, `source` drafts in every round and competes with the drafter, which is
    asked where its draft is expected to be worth more. Otherwise `source` only replaces a drafter
    that is unavailable.
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
        always_offers: bool,
    ) -> None:
        super().__init__(source, phrases, choice)
        self._controller = controller
        self._figures = figures
        self._always_offers = always_offers
        # Verdict on the drafter's last draft, until it is sent with the next call.
        self._unsent_verdict: Verdict | None = None

    def open(self, committed: Sequence[int]) -> None:
        """Opens the drafter's session, which prefills, if that is expected to pay."""
        if self._choice is not None:
            self._choice.open(committed)

    async def propose(self, committed: Sequence[int], budget: DraftBudget) -> Draft:
        """The draft expected to be worth most: none, the free sources' or the drafter's."""
        free_draft, selected = self._free_draft(
            committed, budget if self._always_offers else NO_DRAFT
        )
        choice, offer = self._choice, selected.offer
        if (
            choice is None
            or not budget.max_nodes
            or self._free_sources_win(choice, offer)
            or not choice.should_ask(committed, offer)
        ):
            return self._draft_without_model(free_draft, selected)
        looks_back = self._always_offers and self._phrases is not None and choice.should_look_back()
        began_ns = time.perf_counter_ns()
        last_verdict, self._unsent_verdict = self._unsent_verdict, None
        try:
            draft = await self._draft_with_model(
                choice, committed, last_verdict, budget, free_draft
            )
        except Unavailable:
            self._figures.fallback_rounds += 1
            if not self._always_offers:
                free_draft, selected = self._free_draft(committed, budget)
            return self._draft_without_model(free_draft, selected)
        draft = choice.cut(draft)
        waited_ns, alternative = time.perf_counter_ns() - began_ns, None
        if looks_back:
            own_ns = free_draft.timings.service_ns
            alternative = Alternative(selected, budget, own_ns, began_ns=began_ns - own_ns)
        self._proposed = Proposed(waited_ns, selected.offer, alternative)
        return draft

    def observe(self, outcome: RoundOutcome) -> None:
        """Learns from a finished round, also how long it would have taken without the draft model.

        The latter is skipped if other sessions shared the verification, or if the draft was lost.
        """
        if self._proposed is not None:
            self._unsent_verdict = outcome.verdict
            alternative = self._proposed.alternative
            if alternative is not None and not (outcome.draft_is_lost or outcome.is_shared):
                self._record_hindsight(alternative, outcome)
        super().observe(outcome)

    def _record_hindsight(self, alternative: Alternative, outcome: RoundOutcome) -> None:
        """Compares the round with its alternative.

        To be called before the round's tokens become phrases of the request.
        """
        assert self._choice is not None and self._phrases is not None, "there is an alternative"
        took_ns = time.perf_counter_ns() - alternative.began_ns
        alternative_ns = alternative.nanoseconds(outcome, self._phrases, self._controller)
        self._choice.record_hindsight(alternative_ns - took_ns)

    async def close(self) -> None:
        """Frees the drafter's session."""
        if self._choice is not None:
            await self._choice.drafter.close()

    def _free_draft(self, committed: Sequence[int], budget: DraftBudget) -> tuple[Draft, Selection]:
        """The free sources' draft, and the part of it that is worth verifying."""
        draft = self._draft_from_source(committed, budget)
        return draft, self._controller.select(draft.tree)

    def _free_sources_win(self, choice: ModelChoice, offer: Offer) -> bool:
        """Whether free sources promise more than the drafter, if the size of drafts is fixed.

        Otherwise `ModelChoice.should_ask` compares the two.
        """
        return self._controller.fixed and choice.advantage(offer) < 0

    async def _draft_with_model(
        self,
        choice: ModelChoice,
        committed: Sequence[int],
        last_verdict: Verdict | None,
        budget: DraftBudget,
        free_draft: Draft,
    ) -> Draft:
        """The drafter's draft; `last_verdict` is that on its previous one. Raises Unavailable."""
        return await choice.drafter.propose(committed, last_verdict, budget)

    def _draft_without_model(self, draft: Draft, selected: Selection) -> Draft:
        self._figures.phrase_rounds += len(selected.tree) > 0
        return cut(draft, selected)


def _draft_end(tree: DraftTree, budget: DraftBudget) -> DraftEnd:
    """Why a free source ended its draft here."""
    if not len(tree):
        return DraftEnd.NONE
    if len(tree) >= budget.max_nodes:
        return DraftEnd.NODES
    return DraftEnd.DEPTH if max(tree.depths()) >= budget.max_depth else DraftEnd.TEXT
