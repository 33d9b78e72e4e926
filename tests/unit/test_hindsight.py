"""Hindsight: how long a round that asked the draft model would have taken without it."""

from __future__ import annotations

from typing import Any

import pytest

from draftloop.cost_line import cost_line
from draftloop.model_info import CostPoint
from draftloop.phrase import MAX_CONTEXT
from draftloop.speculation import SPECULATIVE
from draftloop.tree import EMPTY_TREE, ROOT, DraftBudget, DraftTree, TokenSource, Verdict
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
from orchestrator.outcome import RoundOutcome
from orchestrator.selection import EMPTY_SELECTION, NO_OFFER, Offer, Selection
from phrase_store.session import PhraseSession
from tests.unit.test_choice import (
    CHEAP_NS,
    DEAR_NS,
    PROMPT,
    FakeDrafter,
    controller,
    model_choice,
    with_load,
)

PHRASE = TokenSource.PHRASE
PLAIN_NS, OWN_NS = 1000, 50
FLAT = VerifyCost((CostPoint(1, PLAIN_NS), CostPoint(65, PLAIN_NS)))
BUDGET = DraftBudget(max_nodes=16, max_depth=8)
ROUND_NS = PLAIN_NS + OWN_NS
OFFER = Offer(0.5, 2)


def alternative_ns(
    chosen: Selection,
    text: list[int],
    new_tokens: int,
    *,
    phrases: PhraseSession,
    cost: VerifyCost = FLAT,
) -> float:
    controller = Controller(max_nodes=16, verify_cost=cost)
    outcome = RoundOutcome(
        committed=text, new_tokens=new_tokens, draft=EMPTY_TREE, verdict=Verdict((), (1,), 1)
    )
    return Alternative(chosen, BUDGET, OWN_NS, began_ns=0).nanoseconds(outcome, phrases, controller)


def phrases_of(text: list[int]) -> PhraseSession:
    return PhraseSession(text, 64)


def test_draft_is_matched_along_its_branches() -> None:
    tree = DraftTree((1, 2, 3, 4, 5), (ROOT, ROOT, 1, 2, 2), (0.5,) * 5, (PHRASE,) * 5)
    for text, count in (([2, 3, 5, 9], 3), ([2, 3], 2), ([1, 3], 1), ([7], 0), ([], 0)):
        assert count_matching(tree, text) == count


def test_each_token_costs_a_round_without_drafts() -> None:
    phrases = phrases_of([1, 2, 3])
    assert alternative_ns(EMPTY_SELECTION, [1, 2, 3, 4, 5, 6], 3, phrases=phrases) == 3 * ROUND_NS


def test_free_sources_are_asked_after_each_new_token() -> None:
    # They draft after the text that they knew in that round, and after the tokens since.
    lookups = []

    class RecordingSession:
        def peek(self, context: list[int], budget: DraftBudget, new_tokens: list[int]) -> DraftTree:
            lookups.append((context, new_tokens))
            return EMPTY_TREE

    phrases: Any = RecordingSession()
    alternative_ns(EMPTY_SELECTION, [*range(20), 4, 5, 6], 3, phrases=phrases)
    context_tokens = list(range(20 - MAX_CONTEXT, 20))
    assert lookups == [(context_tokens, [4]), (context_tokens, [4, 5])]


def test_correct_draft_counts_as_one_round() -> None:
    chosen = Selection(DraftTree.chain([4, 5], PHRASE, [0.5, 0.5]), 0.75, cut=False)
    assert alternative_ns(chosen, [1, 2, 3, 4, 5, 6], 3, phrases=phrases_of([1, 2, 3])) == ROUND_NS


def test_draft_beyond_the_new_tokens_counts_in_part() -> None:
    """The draft promised three accepted tokens and a bonus token: two are half a round."""
    chosen = Selection(DraftTree.chain([4, 5, 6, 7], PHRASE, [0.9] * 4), 3.0, cut=False)
    assert alternative_ns(chosen, [1, 2, 3, 4, 5], 2, phrases=phrases_of([1, 2, 3])) == ROUND_NS / 2


def test_rejected_nodes_add_their_verification_cost() -> None:
    """A node costs a tenth of a round: two of them, then a round without a draft."""
    rising = VerifyCost((CostPoint(1, PLAIN_NS), CostPoint(11, 2 * PLAIN_NS)))
    chosen = Selection(DraftTree.chain([9, 8], PHRASE, [0.5, 0.5]), 0.75, cut=False)
    ns = alternative_ns(chosen, [1, 2, 3, 4, 5], 2, phrases=phrases_of([1, 2, 3]), cost=rising)
    assert ns == pytest.approx(2 * ROUND_NS + 2 * PLAIN_NS / 10)


def test_repeated_passage_costs_few_rounds_after_its_first_token() -> None:
    """A comparison of single rounds would not see these savings."""
    passage = list(range(20, 30))
    text = [*passage, 1, 2, *passage, 3, 4, *passage, 5]
    phrases = phrases_of(text)
    for _ in phrases.index_steps():
        pass
    committed = [*text, *passage[:6]]
    expected = alternative_ns(EMPTY_SELECTION, committed, 6, phrases=phrases)
    assert 2 * ROUND_NS <= expected < 4 * ROUND_NS
    # it has counted, proposed and learned nothing
    assert phrases.last_scores == []
    assert alternative_ns(EMPTY_SELECTION, committed, 6, phrases=phrases) == expected


def test_first_rounds_and_then_a_sample_are_evaluated() -> None:
    hindsight = Hindsight()
    evaluated = [hindsight.should_judge() for _ in range(FIRST_JUDGED + 10 * JUDGED_EVERY)]
    assert all(evaluated[:FIRST_JUDGED]) and sum(evaluated[FIRST_JUDGED:]) == 10


def test_evaluated_tries_count_among_the_first_rounds() -> None:
    # The rounds of a try count among the first ones, which are all looked back at.
    hindsight = Hindsight()
    assert all(hindsight.should_judge(is_try=True) for _ in range(FIRST_JUDGED))
    assert sum(hindsight.should_judge() for _ in range(10 * JUDGED_EVERY)) == 10


@pytest.mark.parametrize(("brought", "offer", "correction"), [
    (-0.5, OFFER, -1.5), (-0.5, NO_OFFER, -1.5),
    (3.0, NO_OFFER, 2.0),
    (3.0, OFFER, 0.0),  # taking the offer and asking one round later is no worse
])  # fmt: skip
def test_only_rounds_without_an_offer_are_corrected_upwards(
    brought: float, offer: Offer, correction: float
) -> None:
    hindsight = Hindsight()
    for _ in range(200):
        hindsight.observe(promised=1.0, brought=brought, offer=offer)
    assert hindsight.correction(offer) == pytest.approx(correction, rel=0.05)
    assert hindsight.correction(NO_OFFER if offer is OFFER else OFFER) == 0


@pytest.mark.parametrize("offer", [OFFER, NO_OFFER])
def test_single_stalled_round_has_little_effect(offer: Offer) -> None:
    hindsight = Hindsight()
    hindsight.observe(promised=1.0, brought=-1e9, offer=offer)
    assert -MAX_DIFFERENCE / 4 < hindsight.correction(offer) < 0
    hindsight = Hindsight()
    hindsight.observe(promised=1.0, brought=1e9, offer=offer)  # as if the other round stalled
    for _ in range(20):
        hindsight.observe(promised=1.0, brought=0.0, offer=offer)
    assert hindsight.correction(offer) < 0


@pytest.mark.parametrize("offer", [NO_OFFER, OFFER])
def test_advantage_is_corrected_by_what_asking_brought(offer: Offer) -> None:
    chosen = model_choice(CHEAP_NS, left=100)
    uncorrected = chosen.advantage(offer)
    chosen.should_ask([1, 2, 3], offer)
    for _ in range(200):
        chosen.record_hindsight(saved_ns=-2 * PLAIN_NS)
    rate = chosen._controller.prices.rate
    assert chosen.advantage(offer) == pytest.approx(-2 * rate * PLAIN_NS, abs=0.1)
    assert uncorrected > 0 > chosen.advantage(offer)
    for _ in range(200):
        chosen.record_hindsight(saved_ns=5 * PLAIN_NS)
    brought = 5 * rate * PLAIN_NS
    assert brought > uncorrected + 1
    assert chosen.advantage(offer) == pytest.approx(
        uncorrected if offer.nodes else brought, abs=0.1
    )


def test_model_is_asked_where_nothing_can_be_copied_if_that_has_paid() -> None:
    """The pace of copied passages makes its time look too expensive there."""
    chosen = model_choice(PLAIN_NS, left=400)
    chosen.drafter.open(PROMPT)
    assert chosen.should_ask(PROMPT)  # as a try
    assert chosen.advantage() < 0
    for _ in range(200):
        chosen.record_hindsight(saved_ns=2 * PLAIN_NS)
    assert all(chosen.should_ask(PROMPT) for _ in range(MAX_ROUNDS_WITHOUT))
    assert not all(chosen.should_ask(PROMPT, Offer(2.0, 4)) for _ in range(MAX_ROUNDS_WITHOUT))


def test_overestimate_is_measured_against_the_uncorrected_promise() -> None:
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


def test_fixed_size_ignores_hindsight() -> None:
    gains = Gains()
    adaptive = model_choice(CHEAP_NS, left=100, gains=gains)
    for _ in range(200):
        adaptive.record_hindsight(saved_ns=-20 * PLAIN_NS)
    drafter: Any = FakeDrafter()
    fixed = ModelChoice(
        controller(fixed=True), gains.of(SPECULATIVE, 0.0, CHEAP_NS), drafter=drafter,
        costs=cost_line(()), tokens_left=lambda held: 100,
    )  # fmt: skip
    assert fixed.advantage() > 0 > adaptive.advantage()


def test_only_unshared_priced_rounds_are_evaluated() -> None:
    """Not if other sessions shared the round, it opened the session, or the draft size is fixed."""
    alone, shared, not_ready, fixed = (model_choice(CHEAP_NS, left=400) for _ in range(4))
    cost = with_load(VerifyCost(FLAT.curve), 3)
    shared._controller = Controller(max_nodes=8, verify_cost=cost)
    not_ready.drafter.is_ready = False  # type: ignore[misc]
    fixed._controller = controller(fixed=True)
    models = (alone, shared, not_ready, fixed)
    assert [model.should_look_back() for model in models] == [True, False, False, False]


def test_every_round_of_a_try_is_evaluated() -> None:
    """Nothing else corrects an estimate that prevents other rounds from asking."""
    expensive, overestimated = model_choice(DEAR_NS, left=400), model_choice(CHEAP_NS, left=400)
    for _ in range(200):
        overestimated.record_hindsight(saved_ns=-2 * PLAIN_NS)
    for choice in (expensive, overestimated):
        choice.should_ask(PROMPT)
        assert all(choice.should_look_back() for _ in range(FIRST_JUDGED + 4 * JUDGED_EVERY))
