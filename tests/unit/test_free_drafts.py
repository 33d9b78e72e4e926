"""Drafts from tokens alone: why they ended, and when they are preferred to a drafter's."""

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
from orchestrator.drafting import Drafting, ModelDrafting
from orchestrator.figures import SpeculationFigures
from orchestrator.outcome import RoundOutcome
from orchestrator.selection import Offer


class Uncut:
    def cut(self, draft: Draft) -> Draft:
        return draft


class Always(Uncut):
    def should_draft(self) -> bool:
        return True


class Fixed:
    def __init__(self, tree: DraftTree) -> None:
        self._tree = tree

    def propose(self, committed: Sequence[int], budget: DraftBudget) -> DraftTree:
        return self._tree

    def observe(self, committed: Sequence[int], new: int, draft: DraftTree, said: Verdict) -> None:
        raise AssertionError("nothing was judged")


class Never(Uncut):
    """A choice that never asks the drafter, and keeps what the drafter would have to exceed."""

    def should_ask(self, committed: Sequence[int], offer: Offer) -> bool:
        self.offer = offer
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
    """More than the phrases of this round, at the price of their nodes."""
    choice, figures = Never(), SpeculationFigures()
    cost = VerifyCost((CostPoint(1, 1000), CostPoint(16, 1500)))
    controller = Controller(max_nodes=8, verify_cost=cost)
    unsure = dataclasses.replace(CHAIN, estimates=(0.3, 0.5))
    drafting = ModelDrafting(
        Fixed(unsure), None, choice,  # type: ignore[arg-type]
        controller=controller, figures=figures, always_offers=True,
    )  # fmt: skip
    budget = DraftBudget(max_nodes=8, max_depth=8)
    draft = asyncio.run(drafting.propose([1], None, budget))
    assert draft.tree == unsure and figures.phrase_rounds == 1
    assert choice.offer.tokens == pytest.approx(0.45) and choice.offer.nodes == 2


def test_a_drafter_hears_the_verdicts_on_its_own_drafts_and_no_others() -> None:
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

        def should_ask(self, committed: Sequence[int], offer: Offer) -> bool:
            return next(self.rounds)

    cost = VerifyCost((CostPoint(1, 1000), CostPoint(16, 4000)))
    drafting = ModelDrafting(
        None, None, Now(),  # type: ignore[arg-type]
        controller=Controller(max_nodes=8, verify_cost=cost),
        figures=SpeculationFigures(), always_offers=False,
    )  # fmt: skip
    said = [None, *(Verdict((), (token,), token) for token in (1, 2, 3))]
    for verdict in said:
        asyncio.run(drafting.propose([1], verdict, DraftBudget(max_nodes=8, max_depth=8)))
    assert heard == [None, said[1], said[2]]  # not said[3], which is on another draft


def test_a_round_without_a_draft_says_nothing_about_the_last_one() -> None:
    class Reads(Fixed):
        def observe(self, *said: object) -> None:
            pass

    class Once(Uncut):
        drafted = iter((True, False))
        seen: list[int] = []

        def should_draft(self) -> bool:
            return next(self.drafted)

        def observe(self, accepted: int, nodes: int, draft_ns: int, offer: Offer) -> None:
            self.seen.append(nodes)

    choice = Once()
    drafting = Drafting(Reads(CHAIN), None, choice)  # type: ignore[arg-type]
    for _ in range(2):
        draft = asyncio.run(drafting.propose([1], None, DraftBudget(max_nodes=8, max_depth=8)))
        verdict = Verdict((), (2,), 2, (0,) * len(draft.tree))
        drafting.observe(RoundOutcome(committed=[1, 2], new=1, draft=draft.tree, verdict=verdict))
    assert choice.seen == [2]


def test_successors_of_the_last_token_are_recycled_as_its_own() -> None:
    class Phrases:
        def learn(self, *said: object) -> None:
            pass

        def recycle(self, last: int, draft: DraftTree, verdict: Verdict) -> None:
            self.last = last

    phrases = Phrases()
    drafting = Drafting(None, phrases)  # type: ignore[arg-type]
    drafting.learn([7, 8, 9], CHAIN, Verdict((), (2,), 2, (0, 0)))
    assert phrases.last == 9


def test_a_drafter_that_is_gone_leaves_what_tokens_alone_say() -> None:
    class Gone:
        async def propose(self, *said: object) -> Draft:
            raise Unavailable("gone")

    class Now(Uncut):
        drafter = Gone()

        def should_ask(self, committed: Sequence[int], offer: Offer) -> bool:
            return True

    cost, figures = VerifyCost((CostPoint(1, 1000), CostPoint(16, 1500))), SpeculationFigures()
    drafting = ModelDrafting(
        Fixed(CHAIN), None, Now(),  # type: ignore[arg-type]
        controller=Controller(max_nodes=8, verify_cost=cost),
        figures=figures, always_offers=False,
    )  # fmt: skip
    budget = DraftBudget(max_nodes=8, max_depth=8)
    assert asyncio.run(drafting.propose([1], None, budget)).tree == CHAIN
    assert figures.fallback_rounds == 1


def test_with_a_fixed_size_phrases_that_promise_more_than_the_drafter_are_taken() -> None:
    """No prices: on a busy machine, correct phrases used to look too expensive."""

    class Brings(Uncut):
        def __init__(self, tokens: float) -> None:
            self._tokens = tokens
            self.drafter = self

        def advantage(self, offer: Offer) -> float:
            return self._tokens - offer.tokens

        def should_ask(self, committed: Sequence[int], offer: Offer) -> bool:
            return True

        async def propose(self, committed: Sequence[int], *said: object) -> Draft:
            return Draft(tree=modelled, committed_length=len(committed))

    modelled = DraftTree.chain([8, 9], TokenSource.DRAFT_MODEL)
    cost = VerifyCost((CostPoint(1, 1000), CostPoint(16, 900_000)))
    for brought, taken in ((0.5, CHAIN), (1.0, modelled)):
        drafting = ModelDrafting(
            Fixed(CHAIN), None, Brings(brought),  # type: ignore[arg-type]
            controller=Controller(max_nodes=8, verify_cost=cost, fixed=True),
            figures=SpeculationFigures(), always_offers=True,
        )  # fmt: skip
        budget = DraftBudget(max_nodes=8, max_depth=8)
        assert asyncio.run(drafting.propose([1], None, budget)).tree == taken
