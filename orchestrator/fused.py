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
            source, phrases, choice, controller=controller, figures=figures, always_offers=True
        )

    def _free_sources_win(self, choice: ModelChoice, offer: Offer) -> bool:
        """Always False: the draft model extends the free sources' tree and does not compete."""
        return False

    async def _draft_with_model(
        self,
        choice: ModelChoice,
        committed: Sequence[int],
        last_verdict: Verdict | None,
        budget: DraftBudget,
        free_draft: Draft,
    ) -> Draft:
        """The free sources' tree, reviewed and extended by the draft model, and lengthened."""
        draft = await choice.drafter.propose(committed, last_verdict, budget, free_draft.tree)
        proposed = Counter(free_draft.tree.sources) + Counter(draft.proposed)
        draft = dataclasses.replace(draft, proposed=proposed)
        return self._extend_with_phrases(draft, committed, budget)

    def _extend_with_phrases(
        self, draft: Draft, committed: Sequence[int], budget: DraftBudget
    ) -> Draft:
        """Appends phrases to the draft model's likeliest leaf (2402.13720, section 3.2)."""
        tree, room = draft.tree, budget.max_nodes - len(draft.tree)
        if self._phrases is None or room <= 0:
            return draft
        probabilities = tree.path_probabilities()
        leaf = _likeliest_leaf(tree, probabilities)
        if leaf is None or probabilities[leaf] <= budget.least_path_probability:
            return draft
        path = tree.path(leaf)
        depth = budget.max_depth - len(path)
        if depth <= 0:
            return draft
        phrase_budget = DraftBudget(
            max_nodes=room,
            max_depth=depth,
            least_path_probability=budget.least_path_probability / probabilities[leaf],
        )
        path_tokens = [tree.token_ids[node] for node in path]
        phrases = self._phrases.propose(committed, phrase_budget, drafted=path_tokens)
        builder = TreeBuilder(tree)
        builder.graft(leaf, phrases)
        proposed = Counter(draft.proposed) + Counter(phrases.sources)
        return dataclasses.replace(draft, tree=builder.build(), proposed=proposed)


def _likeliest_leaf(tree: DraftTree, probabilities: Sequence[float]) -> int | None:
    """The draft model's likeliest leaf of the tree; None if it has none."""
    inner_nodes = set(tree.parents)
    leaves = [
        node for node, source in enumerate(tree.sources)
        if source is TokenSource.DRAFT_MODEL and node not in inner_nodes
    ]  # fmt: skip
    return max(leaves, key=probabilities.__getitem__, default=None)
