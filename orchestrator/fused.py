"""`fused`: one draft tree from all sources, with a price on every node and every draft forward.

Phrases, the request's own text and the target's recycled successors grow one tree in microseconds.
The draft model reviews and extends it where its forwards are worth their time. Of the result, the
part that is worth most at the present pace is verified; that can be nothing.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from draftloop.tree import (
    Draft,
    DraftBudget,
    DraftTree,
    TokenSource,
    Verdict,
)
from draftloop.tree_builder import TreeBuilder
from orchestrator.budget import Controller
from orchestrator.choice import ModelChoice
from orchestrator.drafting import ModelDrafting
from orchestrator.figures import SpeculationFigures
from orchestrator.selection import Offer
from orchestrator.sources import PhraseSource
from phrase_store.session import PhraseSession


class FusedDrafting(ModelDrafting):
    """The draft model reviews and extends the free sources' tree, in the rounds `choice` picks.

    Without `choice`, only free sources draft.
    """

    def __init__(
        self,
        phrases: PhraseSession | None,
        choice: ModelChoice | None,
        *,
        controller: Controller,
        figures: SpeculationFigures,
    ) -> None:
        source = PhraseSource(phrases) if phrases else None
        super().__init__(
            source, phrases, choice, controller=controller, figures=figures, offers=True
        )

    def _outdone(self, offer: Offer) -> bool:
        """Always False: the draft model extends the free sources' tree and does not compete."""
        return False

    async def _with_model(
        self,
        model: ModelChoice,
        committed: Sequence[int],
        heard: Verdict | None,
        budget: DraftBudget,
        free: Draft,
    ) -> Draft:
        """The free sources' tree, reviewed and extended by the draft model, and lengthened."""
        draft = await model.drafter.propose(committed, heard, budget, free.tree)
        proposed = Counter(free.tree.sources) + Counter(draft.proposed)
        draft = dataclasses.replace(draft, proposed=proposed)
        return self._lengthened(draft, committed, budget)

    def _lengthened(self, draft: Draft, committed: Sequence[int], budget: DraftBudget) -> Draft:
        """Appends phrases to the draft model's likeliest leaf (2402.13720, section 3.2)."""
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


def _likeliest_end(tree: DraftTree, reached: Sequence[float]) -> int | None:
    """The draft model's likeliest leaf of the tree; None if it has none."""
    inner = set(tree.parents)
    ends = [
        node for node, source in enumerate(tree.sources)
        if source is TokenSource.DRAFT_MODEL and node not in inner
    ]  # fmt: skip
    return max(ends, key=reached.__getitem__, default=None)
