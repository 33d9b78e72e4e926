"""`fused`: all sources in one tree, each node and each draft forward priced, none at all included.

Phrases, the request's own text and the target's recycled successors grow one tree in microseconds.
The draft model reviews and extends it where its forwards are worth their time. What is verified is
the part of the result that brings in most at the present pace (ALGORITHMS, section 6).
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence

from draftloop.errors import Unavailable
from draftloop.patience import Patience
from draftloop.tree import (
    EMPTY_TREE,
    Draft,
    DraftBudget,
    DraftEnd,
    DraftTree,
    TokenSource,
    Verdict,
)
from draftloop.tree_builder import TreeBuilder
from orchestrator.budget import Controller
from orchestrator.drafter_session import DrafterSession
from orchestrator.drafting import RecyclingDrafting
from orchestrator.figures import SpeculationFigures
from orchestrator.gains import ModelGain
from orchestrator.selection import Selection, select
from orchestrator.sources import PhraseSource
from phrase_store.session import PhraseSession

# Rounds after which free sources are tried again at the latest.
LONGEST_WITHOUT_PLAN = 8
# Tokens in a row that phrases would have guessed: then they are asked in every round.
FOLLOWING = 2


class FusedDrafting(RecyclingDrafting):
    """Chooses, round by round, between no draft, free sources alone, and the draft model on top.

    No `drafter` means that the draft model is switched off. `gain` is what its rounds bring;
    `end` is how many tokens the request holds at most when it ends.
    """

    def __init__(
        self,
        phrases: PhraseSession | None,
        *,
        drafter: DrafterSession | None,
        controller: Controller,
        figures: SpeculationFigures,
        gain: ModelGain,
        end: int,
    ) -> None:
        super().__init__(PhraseSource(phrases) if phrases else None, phrases)
        self._drafter = drafter
        self._controller = controller
        self._figures = figures
        self._gain = gain
        self._end = end
        self._plans = Patience(LONGEST_WITHOUT_PLAN)
        self._of_model: tuple[float, int] | None = None  # this round's offer and draft time
        self._unjudged = False  # the drafter has not heard yet what became of its last draft
        self._just_opened = False  # by a round that wanted a draft: the next one asks for it

    def open(self, committed: Sequence[int]) -> None:
        """Lets the drafter prefill, unless it would be for nothing by what is known.

        Then the first round that asks for it opens its session, if one ever does.
        """
        if self._drafter is not None and self._wants_a_session(committed, 0.0, self._worth_of_none):
            self._drafter.open(committed)

    async def propose(
        self, committed: Sequence[int], verdict: Verdict | None, budget: DraftBudget
    ) -> Draft:
        """The draft that is worth most of the three."""
        heard, self._unjudged, self._of_model = verdict if self._unjudged else None, False, None
        free = self._free_draft(committed, budget)
        chosen = self._select(free.tree, budget)
        if self._drafter is None or not budget.max_nodes:
            return self._without_model(free, chosen)
        if not self._drafter.asked_for:
            if self._wants_a_session(committed, chosen.promised, chosen.worth):
                self._drafter.open(committed)
                self._just_opened = True
            return self._without_model(free, chosen)
        if not self._asks_the_model(chosen):
            return self._without_model(free, chosen)
        began = time.perf_counter_ns()
        try:
            draft = await self._drafter.propose(committed, heard, budget, free.tree)
        except Unavailable:
            self._figures.fallback_rounds += 1
            return self._without_model(free, chosen)
        self._unjudged = True
        self._of_model = chosen.promised, time.perf_counter_ns() - began
        draft = dataclasses.replace(
            draft, proposed=Counter(free.tree.sources) + Counter(draft.proposed)
        )
        draft = self._lengthened(draft, committed, budget)
        return _cut(draft, self._select(draft.tree, budget))

    def observe(
        self, committed: Sequence[int], new: int, draft: DraftTree, verdict: Verdict
    ) -> None:
        """Learns text, successors, and what the draft model brought."""
        super().observe(committed, new, draft, verdict)
        if self._of_model is not None:
            offered, draft_ns = self._of_model
            self._gain.observe(offered, len(verdict.accepted_nodes), len(draft), draft_ns)

    async def close(self) -> None:
        """Frees the drafter's session."""
        if self._drafter is not None:
            await self._drafter.close()

    def _free_draft(self, committed: Sequence[int], budget: DraftBudget) -> Draft:
        """What phrases, own text and successors propose; nothing while that has not paid."""
        due = self._plans.due() or self._follows_phrases
        if self._controller.fixed or due:
            return self._own_draft(committed, budget)
        return Draft(tree=EMPTY_TREE, committed_length=len(committed))

    def _lengthened(self, draft: Draft, committed: Sequence[int], budget: DraftBudget) -> Draft:
        """With the phrases that follow the draft model's likeliest end (2402.13720, 3.2)."""
        tree, room = draft.tree, budget.max_nodes - len(draft.tree)
        if self._phrases is None or room <= 0:
            return draft
        reached = tree.path_probabilities()
        end = _likeliest_end(tree, reached)
        if end is None or reached[end] <= budget.least_path_probability:
            return draft
        drafted = tree.path(end)
        depth = budget.max_depth - len(drafted)
        if depth <= 0:
            return draft
        left = DraftBudget(
            max_nodes=room,
            max_depth=depth,
            least_path_probability=budget.least_path_probability / reached[end],
        )
        behind = [tree.token_ids[node] for node in drafted]
        phrases = self._phrases.propose(committed, left, drafted=behind)
        builder = TreeBuilder(tree)
        builder.graft(end, phrases)
        proposed = Counter(draft.proposed) + Counter(phrases.sources)
        return dataclasses.replace(draft, tree=builder.build(), proposed=proposed)

    def _select(self, tree: DraftTree, budget: DraftBudget) -> Selection:
        controller = self._controller
        rate = 0.0 if controller.fixed else controller.rate
        return select(tree, controller.verify_cost, rate, budget.max_nodes)

    def _paid(self, planned: Draft, chosen: Selection) -> bool:
        """Whether free sources brought in more than the time that planning took."""
        price = self._controller.rate * planned.timings.service_ns
        return chosen.worth - self._worth_of_none > price

    @property
    def _worth_of_none(self) -> float:
        """What `Selection.worth` is of a round without a draft."""
        return 1 - self._controller.rate * self._controller.verify_cost.nanoseconds(0)

    @property
    def _follows_phrases(self) -> bool:
        """Whether the text is one that phrases have known for some tokens."""
        return self._phrases is not None and self._phrases.run >= FOLLOWING

    def _wants_a_session(self, committed: Sequence[int], offered: float, without: float) -> bool:
        """Whether to have the drafter prefill: for what the rounds to come gain, or as a try.

        `offered`: what free sources promise; `without`: what a round without the model is worth.
        """
        controller, gain = self._controller, self._gain
        if controller.fixed:
            return True
        advantage, left = gain.worth(offered, controller) - without, self._end - len(committed)
        pays = gain.pays_to_open(advantage, len(committed), left, controller.rate)
        return gain.openings.takes(pays)

    def _asks_the_model(self, free: Selection) -> bool:
        """Whether a round with the draft model is worth more than the best one without."""
        if self._controller.fixed:
            return True
        opened, self._just_opened = self._just_opened, False
        pays = self._gain.worth(free.promised, self._controller) > free.worth
        return self._gain.patience.takes(pays) or opened

    def _without_model(self, draft: Draft, chosen: Selection) -> Draft:
        if draft.timings.service_ns:
            self._plans.paid(self._paid(draft, chosen))
        self._figures.phrase_rounds += len(chosen.tree) > 0
        return _cut(draft, chosen)


def _cut(draft: Draft, chosen: Selection) -> Draft:
    """The draft cut to what was chosen of it."""
    if not chosen.cut:
        return draft if len(draft.tree) else dataclasses.replace(draft, end=DraftEnd.NONE)
    return dataclasses.replace(
        draft,
        tree=chosen.tree,
        proposed=draft.proposed or Counter(draft.tree.sources),
        end=DraftEnd.VERIFY_COST if len(chosen.tree) else DraftEnd.NONE,
    )


def _likeliest_end(tree: DraftTree, reached: Sequence[float]) -> int | None:
    """The draft model's likeliest node without children; None where it has none."""
    inner = set(tree.parents)
    ends = [
        node for node, source in enumerate(tree.sources)
        if source is TokenSource.DRAFT_MODEL and node not in inner
    ]  # fmt: skip
    return max(ends, key=reached.__getitem__, default=None)
