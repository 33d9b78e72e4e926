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


class UncutChoice:
    def cut(self, draft: Draft) -> Draft:
        return draft


class AlwaysDrafts(UncutChoice):
    def should_draft(self) -> bool:
        return True


class FixedSource:
    def __init__(self, tree: DraftTree) -> None:
        self._tree = tree

    def propose(self, committed: Sequence[int], budget: DraftBudget) -> DraftTree:
        return self._tree

    def observe(self, outcome: RoundOutcome) -> None:
        raise AssertionError("nothing was judged")


class NeverAsks(UncutChoice):
    """A choice that never asks the drafter, and keeps what the drafter would have to exceed."""

    def should_ask(self, committed: Sequence[int], offer: Offer) -> bool:
        self.offer = offer
        return False


def outcome_of(draft: DraftTree, verdict: Verdict) -> RoundOutcome:
    """The outcome of a round that committed one token."""
    return RoundOutcome(committed=[1, 2], new_tokens=1, draft=draft, verdict=verdict)


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
def test_free_draft_reports_why_it_ended(
    tree: DraftTree, most_nodes: int, most_depth: int, end: DraftEnd
) -> None:
    drafting = Drafting(FixedSource(tree), None, AlwaysDrafts())  # type: ignore[arg-type]
    budget = DraftBudget(max_nodes=most_nodes, max_depth=most_depth)
    assert asyncio.run(drafting.propose([1], budget)).end is end


def test_drafter_is_asked_only_if_it_exceeds_the_phrases() -> None:
    """More than the phrases of this round, at the price of their nodes."""
    choice, figures = NeverAsks(), SpeculationFigures()
    cost = VerifyCost((CostPoint(1, 1000), CostPoint(16, 1500)))
    controller = Controller(max_nodes=8, verify_cost=cost)
    uncertain = dataclasses.replace(CHAIN, estimates=(0.3, 0.5))
    drafting = ModelDrafting(
        FixedSource(uncertain), None, choice,  # type: ignore[arg-type]
        controller=controller, figures=figures, always_offers=True,
    )  # fmt: skip
    budget = DraftBudget(max_nodes=8, max_depth=8)
    draft = asyncio.run(drafting.propose([1], budget))
    assert draft.tree == uncertain and figures.phrase_rounds == 1
    assert choice.offer.tokens == pytest.approx(0.45) and choice.offer.nodes == 2


def test_drafter_receives_only_verdicts_on_its_own_drafts() -> None:
    received: list[Verdict | None] = []

    class Drafter:
        async def propose(
            self, committed: Sequence[int], verdict: Verdict | None, budget: DraftBudget
        ) -> Draft:
            received.append(verdict)
            return Draft(tree=CHAIN, committed_length=len(committed))

    class Now(UncutChoice):
        drafter = Drafter()
        rounds = iter((True, True, False, True))

        def should_ask(self, committed: Sequence[int], offer: Offer) -> bool:
            return next(self.rounds)

        def observe(self, *_args: object) -> None:
            pass

    cost = VerifyCost((CostPoint(1, 1000), CostPoint(16, 4000)))
    drafting = ModelDrafting(
        None, None, Now(),  # type: ignore[arg-type]
        controller=Controller(max_nodes=8, verify_cost=cost),
        figures=SpeculationFigures(), always_offers=False,
    )  # fmt: skip
    verdicts = [Verdict((), (token,), token) for token in (1, 2, 3, 4)]
    for verdict in verdicts:
        draft = asyncio.run(drafting.propose([1], DraftBudget(max_nodes=8, max_depth=8)))
        drafting.observe(outcome_of(draft.tree, verdict))
    assert received == [None, verdicts[0], verdicts[1]]  # not verdicts[2], on another draft


def test_round_without_a_draft_does_not_count_the_previous_draft() -> None:
    class Reads(FixedSource):
        def observe(self, outcome: RoundOutcome) -> None:
            pass

    class Once(UncutChoice):
        drafted = iter((True, False))
        seen: list[int] = []

        def should_draft(self) -> bool:
            return next(self.drafted)

        def observe(self, accepted: int, nodes: int, draft_ns: int, offer: Offer) -> None:
            self.seen.append(nodes)

    choice = Once()
    drafting = Drafting(Reads(CHAIN), None, choice)  # type: ignore[arg-type]
    for _ in range(2):
        draft = asyncio.run(drafting.propose([1], DraftBudget(max_nodes=8, max_depth=8)))
        verdict = Verdict((), (2,), 2, (0,) * len(draft.tree))
        drafting.observe(outcome_of(draft.tree, verdict))
    assert choice.seen == [2]


def test_successors_are_recycled_under_the_last_token() -> None:
    class Phrases:
        def learn(self, *_args: object) -> None:
            pass

        def recycle(self, last: int, draft: DraftTree, verdict: Verdict) -> None:
            self.last = last

    phrases = Phrases()
    drafting = Drafting(None, phrases)  # type: ignore[arg-type]
    drafting.learn([7, 8, 9], CHAIN, Verdict((), (2,), 2, (0, 0)))
    assert phrases.last == 9


def test_free_draft_is_used_when_the_drafter_is_unavailable() -> None:
    class Gone:
        async def propose(self, *_args: object) -> Draft:
            raise Unavailable("gone")

    class Now(UncutChoice):
        drafter = Gone()

        def should_ask(self, committed: Sequence[int], offer: Offer) -> bool:
            return True

    cost, figures = VerifyCost((CostPoint(1, 1000), CostPoint(16, 1500))), SpeculationFigures()
    drafting = ModelDrafting(
        FixedSource(CHAIN), None, Now(),  # type: ignore[arg-type]
        controller=Controller(max_nodes=8, verify_cost=cost),
        figures=figures, always_offers=False,
    )  # fmt: skip
    budget = DraftBudget(max_nodes=8, max_depth=8)
    assert asyncio.run(drafting.propose([1], budget)).tree == CHAIN
    assert figures.fallback_rounds == 1


def test_fixed_size_uses_phrases_that_promise_more_than_the_drafter() -> None:
    """No prices: on a busy machine, correct phrases used to look too expensive."""

    class Brings(UncutChoice):
        def __init__(self, tokens: float) -> None:
            self._tokens = tokens
            self.drafter = self

        def advantage(self, offer: Offer) -> float:
            return self._tokens - offer.tokens

        def should_ask(self, committed: Sequence[int], offer: Offer) -> bool:
            return True

        async def propose(self, committed: Sequence[int], *_args: object) -> Draft:
            return Draft(tree=model_draft, committed_length=len(committed))

    model_draft = DraftTree.chain([8, 9], TokenSource.DRAFT_MODEL)
    cost = VerifyCost((CostPoint(1, 1000), CostPoint(16, 900_000)))
    for gain, expected in ((0.5, CHAIN), (1.0, model_draft)):
        drafting = ModelDrafting(
            FixedSource(CHAIN), None, Brings(gain),  # type: ignore[arg-type]
            controller=Controller(max_nodes=8, verify_cost=cost, fixed=True),
            figures=SpeculationFigures(), always_offers=True,
        )  # fmt: skip
        budget = DraftBudget(max_nodes=8, max_depth=8)
        assert asyncio.run(drafting.propose([1], budget)).tree == expected
