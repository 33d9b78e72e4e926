"""Drafts from tokens alone say why they are no larger."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest

from draftloop.errors import Unavailable
from draftloop.model_info import CostPoint
from draftloop.tree import (
    EMPTY_TREE,
    ROOT,
    Draft,
    DraftBudget,
    DraftEnd,
    DraftTree,
    TokenSource,
    Verdict,
)
from orchestrator.budget import Controller
from orchestrator.costs import VerifyCost
from orchestrator.drafting import MOST_PHRASE_ROUNDS, DrafterDrafting, Drafting, RecyclingDrafting
from orchestrator.figures import SpeculationFigures


class Uncut:
    def cut(self, draft: Draft) -> Draft:
        return draft


class Always(Uncut):
    def drafts(self) -> bool:
        return True


class Fixed:
    def __init__(self, tree: DraftTree) -> None:
        self._tree = tree

    def propose(self, committed: Sequence[int], budget: DraftBudget) -> DraftTree:
        return self._tree

    def observe(self, committed: Sequence[int], new: int, draft: DraftTree, said: Verdict) -> None:
        raise AssertionError("nothing was judged")


class Never(Uncut):
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


def test_a_drafter_that_phrases_outdo_is_asked_now_and_then() -> None:
    """Or nobody would learn that it does better by now."""
    asked: list[int] = []

    class Noted(Uncut):
        def asks(self, committed: Sequence[int], offered: float, without: float) -> bool:
            asked.append(len(committed))
            return False

    cost = VerifyCost((CostPoint(1, 1000), CostPoint(16, 1000)))
    sure = dataclasses.replace(CHAIN, estimates=(1.0, 1.0))
    drafting = DrafterDrafting(
        Fixed(sure), None, Noted(),  # type: ignore[arg-type]
        controller=Controller(max_nodes=8, verify_cost=cost, draft_token_ns=1000.0),
        figures=SpeculationFigures(), prefers_phrases=True,
    )  # fmt: skip
    budget = DraftBudget(max_nodes=8, max_depth=8)
    for number in range(1, 3 * MOST_PHRASE_ROUNDS):
        assert asyncio.run(drafting.propose([1] * number, None, budget)).tree == sure
    assert asked == [MOST_PHRASE_ROUNDS + 1, 2 * (MOST_PHRASE_ROUNDS + 1)]


def test_a_drafter_hears_only_verdicts_on_its_own_drafts() -> None:
    heard: list[Verdict | None] = []

    class Drafter:
        async def propose(
            self, committed: Sequence[int], verdict: Verdict | None, budget: DraftBudget
        ) -> Draft:
            heard.append(verdict)
            return Draft(tree=CHAIN, committed_length=len(committed))

    class Now(Uncut):
        drafter = Drafter()
        rounds = iter((True, True, False, True))

        def asks(self, committed: Sequence[int], offered: float, without: float) -> bool:
            return next(self.rounds)

    cost = VerifyCost((CostPoint(1, 1000), CostPoint(16, 4000)))
    drafting = DrafterDrafting(
        None, None, Now(),  # type: ignore[arg-type]
        controller=Controller(max_nodes=8, verify_cost=cost, draft_token_ns=100.0),
        figures=SpeculationFigures(), prefers_phrases=False,
    )  # fmt: skip
    said = [None, *(Verdict((), (token,), token) for token in (1, 2, 3))]
    for verdict in said:
        asyncio.run(drafting.propose([1], verdict, DraftBudget(max_nodes=8, max_depth=8)))
    assert heard == [None, said[1], None]


def test_a_round_without_a_draft_says_nothing_about_the_last_one() -> None:
    class Reads(Fixed):
        def observe(self, *said: object) -> None:
            pass

    class Once(Uncut):
        drafted = iter((True, False))
        seen: list[int] = []

        def drafts(self) -> bool:
            return next(self.drafted)

        def observe(self, accepted: int, nodes: int, draft_ns: int, offered: float) -> None:
            self.seen.append(nodes)

    choice = Once()
    drafting = Drafting(Reads(CHAIN), None, choice)  # type: ignore[arg-type]
    for _ in range(2):
        draft = asyncio.run(drafting.propose([1], None, DraftBudget(max_nodes=8, max_depth=8)))
        drafting.observe([1, 2], 1, draft.tree, Verdict((), (2,), 2, (0,) * len(draft.tree)))
    assert choice.seen == [2]


def test_successors_of_the_last_token_are_recycled_as_its_own() -> None:
    class Phrases:
        def learn(self, *said: object) -> None:
            pass

        def recycle(self, last: int, draft: DraftTree, verdict: Verdict) -> None:
            self.last = last

    phrases = Phrases()
    drafting = RecyclingDrafting(None, phrases)  # type: ignore[arg-type]
    drafting.learn([7, 8, 9], CHAIN, Verdict((), (2,), 2, (0, 0)))
    assert phrases.last == 9


def test_a_drafter_that_is_gone_leaves_what_tokens_alone_say() -> None:
    class Gone:
        async def propose(self, *said: object) -> Draft:
            raise Unavailable("gone")

    class Now(Uncut):
        drafter = Gone()

        def asks(self, committed: Sequence[int], offered: float, without: float) -> bool:
            return True

    cost, figures = VerifyCost((CostPoint(1, 1000),)), SpeculationFigures()
    drafting = DrafterDrafting(
        Fixed(CHAIN), None, Now(),  # type: ignore[arg-type]
        controller=Controller(max_nodes=8, verify_cost=cost, draft_token_ns=100.0),
        figures=figures, prefers_phrases=False,
    )  # fmt: skip
    budget = DraftBudget(max_nodes=8, max_depth=8)
    assert asyncio.run(drafting.propose([1], None, budget)).tree == CHAIN
    assert figures.fallback_rounds == 1
