"""Drafts from tokens alone say why they are no larger."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest

from draftloop.model_info import CostPoint
from draftloop.tree import EMPTY_TREE, ROOT, DraftBudget, DraftEnd, DraftTree, TokenSource, Verdict
from orchestrator.budget import Controller
from orchestrator.costs import VerifyCost
from orchestrator.drafting import DrafterDrafting, Drafting
from orchestrator.figures import SpeculationFigures


class Always:
    def drafts(self) -> bool:
        return True


class Fixed:
    def __init__(self, tree: DraftTree) -> None:
        self._tree = tree

    def propose(self, committed: Sequence[int], budget: DraftBudget) -> DraftTree:
        return self._tree

    def observe(self, committed: Sequence[int], new: int, draft: DraftTree, said: Verdict) -> None:
        raise AssertionError("nothing was judged")


class Never:
    """A choice that asks no drafter, and knows what it would have had to beat."""

    def asks(self, committed: Sequence[int], offered: float, without: float) -> bool:
        self.offered, self.without = offered, without
        return False


CHAIN = DraftTree((5, 6), (ROOT, 0), (0.5, 0.5), (TokenSource.PROMPT_LOOKUP,) * 2)


@pytest.mark.parametrize(
    ("tree", "most_nodes", "most_depth", "end"),
    [
        (EMPTY_TREE, 4, 4, DraftEnd.NONE),
        (CHAIN, 2, 4, DraftEnd.NODES),
        (CHAIN, 4, 2, DraftEnd.DEPTH),
        (CHAIN, 4, 4, DraftEnd.TEXT),
    ],
)
def test_a_free_draft_says_why_it_ended(
    tree: DraftTree, most_nodes: int, most_depth: int, end: DraftEnd
) -> None:
    drafting = Drafting(Fixed(tree), None, Always())  # type: ignore[arg-type]
    budget = DraftBudget(max_nodes=most_nodes, max_depth=most_depth)
    assert asyncio.run(drafting.propose([1], None, budget)).end is end


def test_a_drafter_must_bring_in_more_than_phrases_do() -> None:
    """Than those of this round, at their verification's price."""
    choice, figures = Never(), SpeculationFigures()
    cost = VerifyCost((CostPoint(1, 1000), CostPoint(16, 4000)))
    controller = Controller(max_nodes=8, verify_cost=cost, draft_token_ns=100.0)
    unsure = dataclasses.replace(CHAIN, estimates=(0.3, 0.5))
    drafting = DrafterDrafting(
        Fixed(unsure), None, choice,  # type: ignore[arg-type]
        controller=controller, figures=figures, prefers_phrases=True,
    )  # fmt: skip
    budget = DraftBudget(max_nodes=8, max_depth=8)
    draft = asyncio.run(drafting.propose([1], None, budget))
    assert draft.tree == unsure and figures.phrase_rounds == 1
    assert choice.offered == pytest.approx(0.45)
    price = controller.rate * cost.nanoseconds(2)
    assert choice.without == pytest.approx(1.45 - price) and price > 1
