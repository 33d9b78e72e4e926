"""Hindsight: how long a round that asked the draft model would have taken without it."""

from __future__ import annotations

from typing import Any

import pytest

from draftloop.cost_line import cost_line
from draftloop.model_info import CostPoint
from draftloop.phrase import MAX_CONTEXT
from draftloop.speculation import SPECULATIVE
from draftloop.tree import EMPTY_TREE, ROOT, DraftBudget, DraftTree, TokenSource
from orchestrator.budget import Controller
from orchestrator.choice import ModelChoice
from orchestrator.costs import VerifyCost
from orchestrator.gains import MAX_ROUNDS_WITHOUT, TRY_ROUNDS, Gains
from orchestrator.hindsight import (
    FIRST_JUDGED,
    JUDGED_EVERY,
    MAX_DIFFERENCE,
    Alternative,
    Hindsight,
    count_matching,
)
from orchestrator.selection import EMPTY_SELECTION, Selection
from phrase_store.session import PhraseSession
from tests.unit.test_choice import (
    CHEAP_NS,
    DEAR_NS,
    PROMPT,
    FakeDrafter,
    controller,
    crowded,
    model_choice,
)

PHRASE = TokenSource.PHRASE
PLAIN_NS, OWN_NS = 1000, 50
FLAT = VerifyCost((CostPoint(1, PLAIN_NS), CostPoint(65, PLAIN_NS)))
BUDGET = DraftBudget(max_nodes=16, max_depth=8)
ROUND_NS = PLAIN_NS + OWN_NS


def took(
    chosen: Selection, text: list[int], new: int, *, known: PhraseSession, cost: VerifyCost = FLAT
) -> float:
    controller = Controller(max_nodes=16, verify_cost=cost)
    return Alternative(chosen, BUDGET, OWN_NS, began_ns=0).nanoseconds(text, new, known, controller)


def unread(text: list[int]) -> PhraseSession:
    return PhraseSession(text, 64)


def test_a_draft_matches_along_its_branches() -> None:
    tree = DraftTree((1, 2, 3, 4, 5), (ROOT, ROOT, 1, 2, 2), (0.5,) * 5, (PHRASE,) * 5)
    for text, count in (([2, 3, 5, 9], 3), ([2, 3], 2), ([1, 3], 1), ([7], 0), ([], 0)):
        assert count_matching(tree, text) == count


def test_without_drafts_every_token_is_a_round() -> None:
    phrases = unread([1, 2, 3])
    assert took(EMPTY_SELECTION, [1, 2, 3, 4, 5, 6], 3, known=phrases) == 3 * ROUND_NS


def test_free_sources_are_asked_behind_what_they_knew_and_what_came_since() -> None:
    # They draft after the text that they knew in that round, and after the tokens since.
    asked = []

    class Asked:
        def peek(self, context: list[int], budget: DraftBudget, beyond: list[int]) -> DraftTree:
            asked.append((context, beyond))
            return EMPTY_TREE

    phrases: Any = Asked()
    took(EMPTY_SELECTION, [*range(20), 4, 5, 6], 3, known=phrases)
    known = list(range(20 - MAX_CONTEXT, 20))
    assert asked == [(known, [4]), (known, [4, 5])]


def test_a_draft_that_was_right_is_one_round() -> None:
    chosen = Selection(DraftTree.chain([4, 5], PHRASE, [0.5, 0.5]), 0.75, cut=False)
    assert took(chosen, [1, 2, 3, 4, 5, 6], 3, known=unread([1, 2, 3])) == ROUND_NS


def test_one_that_would_have_gone_on_counts_in_part() -> None:
    """The draft promised three accepted tokens and the target's own: two are half a round."""
    chosen = Selection(DraftTree.chain([4, 5, 6, 7], PHRASE, [0.9] * 4), 3.0, cut=False)
    assert took(chosen, [1, 2, 3, 4, 5], 2, known=unread([1, 2, 3])) == ROUND_NS / 2


def test_nodes_that_were_wrong_would_have_been_verified_as_well() -> None:
    """A node costs a tenth of a round: two of them, then a round without a draft."""
    rising = VerifyCost((CostPoint(1, PLAIN_NS), CostPoint(11, 2 * PLAIN_NS)))
    chosen = Selection(DraftTree.chain([9, 8], PHRASE, [0.5, 0.5]), 0.75, cut=False)
    without = took(chosen, [1, 2, 3, 4, 5], 2, known=unread([1, 2, 3]), cost=rising)
    assert without == pytest.approx(2 * ROUND_NS + 2 * PLAIN_NS / 10)


def test_behind_the_first_token_of_a_passage_that_comes_again_the_rest_is_free() -> None:
    """Comparing single rounds cannot show this."""
    passage = list(range(20, 30))
    text = [*passage, 1, 2, *passage, 3, 4, *passage, 5]
    phrases = unread(text)
    for _ in phrases.index_steps():
        pass
    now = [*text, *passage[:6]]
    with_rest = took(EMPTY_SELECTION, now, 6, known=phrases)
    assert 2 * ROUND_NS <= with_rest < 4 * ROUND_NS
    # it has counted, proposed and learned nothing
    assert phrases.last_scores == []
    assert took(EMPTY_SELECTION, now, 6, known=phrases) == with_rest


def test_the_first_rounds_are_looked_back_at_and_then_some() -> None:
    hindsight = Hindsight()
    looked = [hindsight.should_judge() for _ in range(FIRST_JUDGED + 10 * JUDGED_EVERY)]
    assert all(looked[:FIRST_JUDGED]) and sum(looked[FIRST_JUDGED:]) == 10


def test_a_try_is_a_round_like_others_to_those_that_pay() -> None:
    # The rounds of a try count among the first ones, which are all looked back at.
    hindsight = Hindsight()
    assert all(hindsight.should_judge(is_try=True) for _ in range(FIRST_JUDGED))
    assert sum(hindsight.should_judge() for _ in range(10 * JUDGED_EVERY)) == 10


def test_asking_is_overrated_but_never_underrated() -> None:
    # The correction can only lower the worth of asking.
    over, under = Hindsight(), Hindsight()
    assert over.overrated == 0
    for _ in range(200):
        over.observe(promised=1.0, brought=-0.5)
        under.observe(promised=1.0, brought=3.0)
    assert over.overrated == pytest.approx(1.5, rel=0.05) and under.overrated == 0


def test_one_round_that_stood_still_says_little() -> None:
    hindsight = Hindsight()
    hindsight.observe(promised=1.0, brought=-1e9)
    assert 0 < hindsight.overrated < MAX_DIFFERENCE / 4
    hindsight = Hindsight()
    hindsight.observe(promised=1.0, brought=1e9)  # as if the free sources' round stalled
    for _ in range(20):
        hindsight.observe(promised=1.0, brought=0.0)
    assert hindsight.overrated > 0


def test_asking_is_worth_less_by_what_it_was_overrated() -> None:
    chosen = model_choice(CHEAP_NS, left=100)
    at_first = chosen.advantage()
    chosen.should_ask([1, 2, 3])
    for _ in range(200):
        chosen.record_hindsight(saved_ns=-2 * PLAIN_NS)
    rate = chosen._controller.prices.rate
    assert chosen.advantage() == pytest.approx(-2 * rate * PLAIN_NS, abs=0.1)
    assert at_first > 0 > chosen.advantage()
    for _ in range(200):
        chosen.record_hindsight(saved_ns=20 * PLAIN_NS)
    assert chosen.advantage() == at_first  # never worth more than it promises


def test_what_was_overrated_is_asked_no_more_and_measured_against_what_it_promised() -> None:
    """Comparing with the corrected promise would take back half of the correction."""
    model = model_choice(CHEAP_NS, left=400)
    model.drafter.open(PROMPT)
    promised = model.advantage()
    assert promised > 0
    for _ in range(400):
        model.should_ask(PROMPT)
        model.record_hindsight(saved_ns=-PLAIN_NS)
    assert model.advantage() == pytest.approx(-1, abs=0.01)
    assert sum(model.should_ask(PROMPT) for _ in range(MAX_ROUNDS_WITHOUT)) <= TRY_ROUNDS


def test_a_fixed_size_knows_no_hindsight() -> None:
    gains = Gains()
    other = model_choice(CHEAP_NS, left=100, gains=gains)
    for _ in range(200):
        other.record_hindsight(saved_ns=-20 * PLAIN_NS)
    known: Any = FakeDrafter()
    fixed = ModelChoice(
        controller(fixed=True), gains.of(SPECULATIVE, 0.0, CHEAP_NS), drafter=known,
        costs=cost_line(()), tokens_left=lambda held: 100,
    )  # fmt: skip
    assert fixed.advantage() > 0 > other.advantage()


def test_a_round_is_looked_back_at_where_its_time_is_its_own_and_has_a_price() -> None:
    """Not if others shared the round, it opened the session, or the request states a size."""
    alone, among, waiting, stated = (model_choice(CHEAP_NS, left=400) for _ in range(4))
    cost = crowded(VerifyCost(FLAT.curve), 3)
    among._controller = Controller(max_nodes=8, verify_cost=cost)
    waiting.drafter.is_ready = False  # type: ignore[misc]
    stated._controller = controller(fixed=True)
    models = (alone, among, waiting, stated)
    assert [model.should_look_back() for model in models] == [True, False, False, False]


def test_every_round_of_a_try_is_looked_back_at() -> None:
    """Nothing else corrects an estimate that prevents other rounds from asking."""
    dear, overrated = model_choice(DEAR_NS, left=400), model_choice(CHEAP_NS, left=400)
    for _ in range(200):
        overrated.record_hindsight(saved_ns=-2 * PLAIN_NS)
    for tried in (dear, overrated):
        tried.should_ask(PROMPT)
        assert all(tried.should_look_back() for _ in range(FIRST_JUDGED + 4 * JUDGED_EVERY))
