"""Where a request's drafts come from: nowhere, beside the loop, or the drafter service."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterator, Sequence
from typing import Protocol

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
from orchestrator.budget import Controller
from orchestrator.choice import DraftChoice, ModelChoice
from orchestrator.figures import SpeculationFigures
from phrase_store.session import PhraseSession

# After so many rounds of phrases alone the drafter is asked again.
MOST_PHRASE_ROUNDS = 12


class Source(Protocol):
    """Drafts from tokens alone, in microseconds."""

    def reading(self) -> Iterator[None]:
        """Takes in the prompt, a piece a step; the first draft takes in what is left of it."""

    def propose(self, committed: Sequence[int], budget: DraftBudget) -> DraftTree:
        """A draft that continues the committed tokens."""

    def observe(self, committed: Sequence[int], new: int, draft: DraftTree, said: Verdict) -> None:
        """Learns from a verdict; the last `new` committed tokens are those that it brought."""


class Drafting:
    """Drafts from `source` alone, in the rounds that `choice` takes; without one it never drafts.

    No call but `lose`, `delayed` and `learn` may be left out.
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
        # Of a draft that `choice` wanted: what it took, and what free sources had offered for it.
        self._chosen: tuple[int, float] | None = None

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
            self._chosen = draft.timings.service_ns, 0.0
        return draft

    def observe(
        self, committed: Sequence[int], new: int, draft: DraftTree, verdict: Verdict
    ) -> None:
        """Takes in what was committed; the last `new` of the committed tokens are new."""
        if self._source is not None:
            self._source.observe(committed, new, draft, verdict)
        if self._choice is not None and self._chosen is not None:
            draft_ns, offered = self._chosen
            self._choice.observe(len(verdict.accepted_nodes), len(draft), draft_ns, offered)
            self._chosen = None

    def delayed(self, nanoseconds: float) -> None:
        """Takes in how much longer than expected the round of a draft model's draft took."""
        if self._choice is not None:
            self._choice.delayed(nanoseconds)

    def lose(self) -> None:
        """Takes in that the last draft was never judged: the verifier's session went with it."""
        self._chosen = None

    def learn(self, context: Sequence[int], draft: DraftTree, verdict: Verdict) -> None:
        """Harvests phrases; for quiet moments."""
        if self._phrases is not None:
            self._phrases.learn(context, draft, verdict)

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


class RecyclingDrafting(Drafting):
    """Drafts from `source`, which the target's successors in each verdict feed."""

    def learn(self, context: Sequence[int], draft: DraftTree, verdict: Verdict) -> None:
        """Harvests phrases, and keeps the successors of their tokens."""
        super().learn(context, draft, verdict)
        if self._phrases is not None:
            self._phrases.recycle(context[-1], draft, verdict)


class ModelDrafting(Drafting):
    """Drafts from the drafter too, in the rounds that `choice` takes; without one never."""

    _choice: ModelChoice | None

    def __init__(
        self,
        source: Source | None,
        phrases: PhraseSession | None,
        choice: ModelChoice | None,
        *,
        controller: Controller,
        figures: SpeculationFigures,
    ) -> None:
        super().__init__(source, phrases, choice)
        self._controller = controller
        self._figures = figures
        self._unjudged = False  # the drafter has not heard yet what became of its last draft

    def open(self, committed: Sequence[int]) -> None:
        """Lets the drafter prefill, unless it would be for nothing by what is known."""
        if self._choice is not None:
            self._choice.open(committed)

    async def close(self) -> None:
        """Frees the drafter's session."""
        if self._choice is not None:
            await self._choice.drafter.close()

    def _heard(self, verdict: Verdict | None) -> Verdict | None:
        """What the drafter is to hear in this round: the verdict on a draft of its own."""
        heard, self._unjudged = verdict if self._unjudged else None, False
        return heard

    async def _ask(self, proposal: Awaitable[Draft]) -> Draft | None:
        """The drafter's answer; None where it has none, and the round goes on without."""
        try:
            draft = await proposal
        except Unavailable:
            self._figures.fallback_rounds += 1
            return None
        self._unjudged = True
        return draft


class DrafterDrafting(ModelDrafting):
    """Drafts from the drafter; from phrases where it is gone or not worth its time."""

    _choice: ModelChoice

    def __init__(
        self,
        source: Source | None,
        phrases: PhraseSession | None,
        choice: ModelChoice,
        *,
        controller: Controller,
        figures: SpeculationFigures,
        prefers_phrases: bool,
    ) -> None:
        super().__init__(source, phrases, choice, controller=controller, figures=figures)
        self._prefers_phrases = prefers_phrases
        self._phrase_rounds_in_a_row = 0

    async def propose(
        self, committed: Sequence[int], verdict: Verdict | None, budget: DraftBudget
    ) -> Draft:
        """The drafter's tree, unless phrases promise more tokens a second by themselves."""
        heard = self._heard(verdict)
        own, offered = Draft(tree=EMPTY_TREE, committed_length=len(committed)), 0.0
        if not budget.max_nodes:
            return own
        if self._prefers_phrases:
            own = self._choice.cut(self._own_draft(committed, budget))
            offered = sum(own.tree.path_probabilities())
            if self._promises_more(offered, len(own.tree)):
                self._figures.phrase_rounds += 1
                self._phrase_rounds_in_a_row += 1
                return own
            self._phrase_rounds_in_a_row = 0
        without = self._controller.worth(offered, len(own.tree))
        if not self._choice.asks(committed, offered, without):
            self._figures.phrase_rounds += len(own.tree) > 0
            return own
        began = time.perf_counter_ns()
        draft = await self._ask(self._choice.drafter.propose(committed, heard, budget))
        if draft is None:
            return self._choice.cut(self._own_draft(committed, budget))
        draft = self._choice.cut(draft)
        self._chosen = time.perf_counter_ns() - began, offered
        return draft

    def _promises_more(self, offered: float, nodes: int) -> bool:
        if self._phrase_rounds_in_a_row >= MOST_PHRASE_ROUNDS:
            return False  # or nobody would learn that the drafter does better by now
        return self._controller.beats_model(offered, nodes)


def _end(tree: DraftTree, budget: DraftBudget) -> DraftEnd:
    """Why a source that reads tokens alone proposed no more than this."""
    if not len(tree):
        return DraftEnd.NONE
    if len(tree) >= budget.max_nodes:
        return DraftEnd.NODES
    return DraftEnd.DEPTH if max(tree.depths()) >= budget.max_depth else DraftEnd.TEXT
