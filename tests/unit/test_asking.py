"""When the draft model is asked: tries where it does not pay, and waiting for its first draft.

A try is a few rounds in a row. Here free sources offer so much in these rounds that asking the
model brings in less than it costs.
"""

from __future__ import annotations

from typing import Any

import pytest

from draftloop.model_info import CostPoint
from orchestrator.budget import Controller
from orchestrator.choice import MAX_WAIT_PREFILLS, MIN_WAIT_S, ModelChoice
from orchestrator.costs import VerifyCost
from orchestrator.gains import (
    TRY_ROUNDS,
    USUAL_FORWARDS,
    USUAL_TOKENS,
)
from orchestrator.selection import Offer
from tests.unit.test_choice import CHEAP_NS, PLAIN_NS, PROMPT, model_choice

LARGE = Offer(tokens=8.0)


def opened_model_choice(draft_ns: float) -> ModelChoice:
    model = model_choice(draft_ns, left=400)
    model.drafter.open(PROMPT)
    return model


def test_try_continues_while_offers_stay_similar() -> None:
    model = opened_model_choice(CHEAP_NS)
    asked = [number for number in range(2000) if model.should_ask(PROMPT, LARGE)]
    tries = [asked[at : at + TRY_ROUNDS] for at in range(0, len(asked), TRY_ROUNDS)]
    assert len(tries) > 1
    assert all(rounds[-1] - rounds[0] == TRY_ROUNDS - 1 for rounds in tries[:-1])


def test_larger_offer_that_costs_no_more_does_not_end_a_try() -> None:
    """Both offers are larger than any draft: asking loses the time of the draft."""
    model = opened_model_choice(CHEAP_NS)
    while not model.should_ask(PROMPT, LARGE):
        pass
    assert model.should_ask(PROMPT, Offer(tokens=LARGE.tokens + 0.5))
    assert model.should_ask(PROMPT, Offer(tokens=LARGE.tokens + 5))


def test_try_ends_once_asking_pays() -> None:
    model = opened_model_choice(CHEAP_NS)
    while not model.should_ask(PROMPT, LARGE):
        pass
    assert model.should_ask(PROMPT)
    assert not model.should_ask(PROMPT, LARGE), "the round before has told what a try would"


def test_round_that_pays_starts_no_try() -> None:
    """The next round may pay slightly less; only a running try would go on in it."""
    model = opened_model_choice((USUAL_TOKENS - 0.3) * PLAIN_NS / USUAL_FORWARDS)
    small_offer = Offer(tokens=1.0)
    assert model.advantage() > 0 > model.advantage(small_offer) > model.advantage() - 0.5
    assert model.should_ask(PROMPT)
    assert not model.should_ask(PROMPT, small_offer)


def test_wait_for_the_first_draft_is_bounded_by_the_prefill_time() -> None:
    """The drafter may be gone, so the worth of its draft is no reason to wait longer."""
    waited = []
    for fixed in (False, True):
        model = model_choice(CHEAP_NS, left=400)
        slow = VerifyCost((CostPoint(1, 10**9), CostPoint(32, 10**9)))
        model._controller = Controller(max_nodes=8, verify_cost=slow, fixed=fixed)
        model.open(PROMPT)
        drafter: Any = model.drafter
        waited.append(drafter.max_wait_s)
    assert waited[0] == pytest.approx(MIN_WAIT_S + MAX_WAIT_PREFILLS * 10 * PLAIN_NS / 1e9)
    assert waited[1] is None, "of a stated size it is waited for as for every other draft"
