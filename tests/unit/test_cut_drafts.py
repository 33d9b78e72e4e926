"""Finished drafts are cut to what is worth verifying."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from draftloop.cost_line import cost_line
from draftloop.model_info import CostPoint
from draftloop.tree import (
    EMPTY_TREE,
    Draft,
    DraftBudget,
    DraftEnd,
    DraftTree,
    TokenSource,
)
from orchestrator.budget import Controller
from orchestrator.choice import DraftChoice, ModelChoice
from orchestrator.costs import VerifyCost
from orchestrator.drafting import Drafting, ModelDrafting
from orchestrator.figures import SpeculationFigures
from orchestrator.gains import Gain, SharedGain

# Up to four nodes cost nothing more; beyond, any number takes three times as long.
STAIRS = VerifyCost(
    (CostPoint(1, 1000), CostPoint(5, 1000), CostPoint(6, 3000), CostPoint(64, 3000))
)
BUDGET = DraftBudget(max_nodes=16, max_depth=16)
MODEL, COPIED = TokenSource.DRAFT_MODEL, TokenSource.PROMPT_LOOKUP


def controller(*, fixed: bool = False, whole: bool = False) -> Controller:
    return Controller(max_nodes=16, verify_cost=STAIRS, fixed=fixed, verify_uncut=whole)


class Drafter:
    """Drafts eight tokens, four of them likely."""

    is_requested = is_due = is_ready = True

    def __init__(self, source: TokenSource = MODEL) -> None:
        self.tree = DraftTree.chain(range(1, 9), source, [0.9] * 4 + [0.3] * 4)

    async def propose(self, committed: Sequence[int], *_args: object) -> Draft:
        return Draft(tree=self.tree, committed_length=len(committed), end=DraftEnd.DEPTH)


class CopyingSource:
    """The same draft as a source from the text."""

    def propose(self, committed: Sequence[int], budget: DraftBudget) -> DraftTree:
        return Drafter(COPIED).tree


def propose_draft(prices: Controller, *, phrases: bool = False) -> Draft:
    """The draft of a drafter, or of phrases that promise more than it usually brings."""
    drafter: Any = Drafter()
    gain = Gain(SharedGain(deque([1000.0 if phrases else 0.0])))
    if phrases:
        gain.shared.asking.should_try(pays=True)  # no try of the drafter is due
    choice = ModelChoice(
        prices,
        gain,
        drafter=drafter,
        costs=cost_line(()),
        tokens_left=lambda held_tokens: 100 - held_tokens,
    )
    drafting = ModelDrafting(
        CopyingSource() if phrases else None, None, choice,  # type: ignore[arg-type]
        controller=prices, figures=SpeculationFigures(), always_offers=phrases,
    )  # fmt: skip
    return asyncio.run(drafting.propose([1], BUDGET))


@pytest.mark.parametrize("phrases", [False, True])
def test_nodes_beyond_a_step_of_the_cost_curve_are_cut(phrases: bool) -> None:
    draft = propose_draft(controller(), phrases=phrases)
    assert draft.tree.token_ids == (1, 2, 3, 4) and draft.end is DraftEnd.VERIFY_COST
    assert draft.proposed == {COPIED if phrases else MODEL: 8}


@pytest.mark.parametrize("options", [{"fixed": True}, {"whole": True}])
def test_draft_size_set_by_the_request_is_kept(options: dict[str, bool]) -> None:
    draft = propose_draft(controller(**options))
    assert draft.tree == Drafter().tree and draft.end is DraftEnd.DEPTH


def test_hopeless_nodes_are_kept_when_the_draft_is_taken_whole() -> None:
    """A window of `lookahead` needs all of its nodes."""
    tree = DraftTree.chain([1, 2], TokenSource.LOOKAHEAD, [0.0, 0.0])
    assert controller(whole=True).select(tree).tree == tree
    assert controller().select(tree).tree == EMPTY_TREE


def test_drafts_without_a_model_are_cut_too() -> None:
    choice = DraftChoice(controller(), Gain(SharedGain(deque([0.0]))))
    drafting = Drafting(CopyingSource(), None, choice)  # type: ignore[arg-type]
    draft = asyncio.run(drafting.propose([1], BUDGET))
    assert draft.tree.token_ids == (1, 2, 3, 4) and draft.end is DraftEnd.VERIFY_COST
