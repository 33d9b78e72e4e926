"""Whether to draft at all depends on the gains of drafts in this request and in others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from draftloop.cost_line import cost_line
from draftloop.model_info import CostPoint
from draftloop.speculation import PROMPT_LOOKUP, SPECULATIVE
from draftloop.tree import ServiceTimings
from orchestrator.budget import Controller
from orchestrator.choice import TRY_COST_PER_ROUND, DraftChoice, ModelChoice
from orchestrator.costs import VerifyCost
from orchestrator.gains import (
    MAX_ROUNDS_WITHOUT,
    MIN_ROUNDS_UNOPENED,
    PRIOR_ROUNDS,
    SHARE_OF_OFFER,
    TRY_ROUNDS,
    USUAL_FORWARDS,
    USUAL_TOKENS,
    Gains,
)
from orchestrator.selection import Offer

PLAIN_NS = 1000
FLAT = VerifyCost((CostPoint(1, PLAIN_NS), CostPoint(32, PLAIN_NS)))
DEAR_NS, CHEAP_NS = 5 * PLAIN_NS, PLAIN_NS // 10


def controller(fixed: bool = False) -> Controller:
    return Controller(max_nodes=8, verify_cost=FLAT, fixed=fixed)


def with_load(cost: VerifyCost, sessions: int) -> VerifyCost:
    """The cost when so many sessions of one row each share its forward passes."""
    for _ in range(20):
        cost.load.observe(1, ServiceTimings(batch_size=sessions, batch_rows=sessions))
    return cost


def new_choice(gains: Gains, draft_ns: float = 0.0, fixed: bool = False) -> DraftChoice:
    prices = controller(fixed)
    return DraftChoice(prices, gains.of(PROMPT_LOOKUP, 0.0, draft_ns))


def play_rounds(chosen: DraftChoice, rounds: int, accepted: int, draft_ns: int) -> list[int]:
    """Plays rounds in which `accepted` nodes are accepted; returns the rounds that drafted."""
    drafted = []
    for number in range(rounds):
        if chosen.should_draft():
            drafted.append(number)
            chosen.observe(accepted, 4, draft_ns)
    return drafted


def test_drafts_that_pay_are_made_every_round() -> None:
    assert play_rounds(new_choice(Gains()), 50, accepted=3, draft_ns=CHEAP_NS) == list(range(50))


def test_losing_drafts_are_tried_less_often_until_they_pay() -> None:
    chosen = new_choice(Gains())
    tries = play_rounds(chosen, 800, accepted=0, draft_ns=DEAR_NS)[-8:]
    gaps = [current - previous for previous, current in pairwise(tries)]
    assert gaps == sorted(gaps) and gaps[-1] == MAX_ROUNDS_WITHOUT + 1
    drafted = play_rounds(chosen, 2000, accepted=4, draft_ns=CHEAP_NS)
    assert drafted[-100:] == list(range(1900, 2000))


def test_fixed_size_is_drafted_regardless_of_gain() -> None:
    chosen = new_choice(Gains(), fixed=True)
    assert play_rounds(chosen, 50, accepted=0, draft_ns=DEAR_NS) == list(range(50))


def test_next_request_knows_the_gains_of_earlier_ones() -> None:
    """The next request also knows that the last try was recent."""
    gains = Gains()
    play_rounds(new_choice(gains), 500, accepted=0, draft_ns=DEAR_NS)
    assert len(play_rounds(new_choice(gains), 60, accepted=0, draft_ns=DEAR_NS)) <= 1
    other_gain = gains.of(PROMPT_LOOKUP, 1.0, 0.0)  # nothing is known at another temperature
    assert len(play_rounds(DraftChoice(controller(), other_gain), 60, accepted=3, draft_ns=0)) == 60


def test_initial_advantage_follows_from_draft_model_cost() -> None:
    assert new_choice(Gains(), draft_ns=CHEAP_NS).should_draft()
    assert new_choice(Gains(), draft_ns=CHEAP_NS).advantage() > 0
    assert new_choice(Gains(), draft_ns=DEAR_NS).advantage() < 0


def test_smaller_drafts_are_considered_under_load() -> None:
    """Nodes that many sessions wait for are expensive; recorded drafts are of quieter times."""
    cost = VerifyCost((CostPoint(1, PLAIN_NS), CostPoint(65, 9 * PLAIN_NS)))
    controller = Controller(max_nodes=8, verify_cost=cost)
    gain = Gains().of(PROMPT_LOOKUP, 0.0, 0.0)
    for _ in range(100):
        gain.observe(4, 8, 0, cost)
    chosen = DraftChoice(controller, gain)
    assert chosen.advantage() > 0
    for _ in range(20):
        cost.load.observe(9, ServiceTimings(batch_size=8, batch_rows=16))
    as_large = 4 - controller.prices.shared_rate * (cost.nanoseconds(8) - cost.nanoseconds(0))
    assert as_large < 0 < chosen.advantage()


class FakeDrafter:
    """A drafter that opens sessions at once; the test sets the rest."""

    def __init__(self) -> None:
        self.is_requested = False
        self.is_due = self.is_ready = True
        self.has_room = True
        self.prefilled = 0
        self.max_wait_s: float | None = None

    def can_serve(self, committed: Sequence[int]) -> bool:
        return self.has_room

    def tokens_to_prefill(self, committed: Sequence[int]) -> int:
        return len(committed) - self.prefilled

    def open(self, committed: Sequence[int], max_wait_s: float | None = None) -> None:
        self.is_requested, self.max_wait_s = True, max_wait_s


def model_choice(draft_ns: float, left: int, gains: Gains | None = None) -> ModelChoice:
    """The choice for a prompt of 100 tokens, whose prefill takes the time of 10 rounds."""
    drafter: Any = FakeDrafter()
    costs = cost_line((CostPoint(1, PLAIN_NS // 10),))
    gain = (gains or Gains()).of(SPECULATIVE, 0.0, draft_ns)
    return ModelChoice(
        controller(), gain, drafter=drafter, costs=costs, tokens_left=lambda held: 100 + left - held
    )


PROMPT = [1] * 100


def test_wait_for_the_first_draft_is_limited_by_its_worth() -> None:
    """Prefilling takes ten rounds; twice that would be waited for if it were worth it."""
    model = model_choice(CHEAP_NS, left=400)
    model.open(PROMPT)
    drafter: Any = model.drafter
    assert drafter.max_wait_s == pytest.approx(model.advantage() * PLAIN_NS / 1e9)
    trying = model_choice(DEAR_NS, left=400)
    while not trying.drafter.is_requested:
        trying.should_ask(PROMPT)
    drafter = trying.drafter
    assert drafter.max_wait_s == 0, "who only tries goes on without until it has prefilled"


def test_drafter_with_the_cached_prompt_needs_less_gain_for_a_session() -> None:
    model = model_choice(CHEAP_NS, 4)
    model.drafter.prefilled = 99  # type: ignore[attr-defined]
    model.open(PROMPT)
    assert model.drafter.is_requested


def test_session_is_opened_when_remaining_rounds_repay_the_prefill() -> None:
    opened = []
    for draft_ns, left in (
        (CHEAP_NS, 400),
        (CHEAP_NS, 4),
        (DEAR_NS, 400),
        (CHEAP_NS, 22),
        (CHEAP_NS, 27),
    ):
        model = model_choice(draft_ns, left)  # 0.9 more in a round of 2.2: 24.4 tokens are worth 10
        model.open(PROMPT)
        opened.append(model.drafter.is_requested)
    assert opened == [True, False, False, False, True]


def test_unopened_session_is_tried_later_and_asked_after_prefill() -> None:
    model = model_choice(DEAR_NS, left=400)
    drafter: Any = model.drafter
    drafter.is_due = False
    model.open(PROMPT)
    asked, opened, prefills = [], [], 20
    for number in range(MIN_ROUNDS_UNOPENED + 2 * prefills):
        previously_requested = model.drafter.is_requested
        if model.should_ask(PROMPT):
            asked.append(number)
        if model.drafter.is_requested > previously_requested:
            opened.append(number)
        drafter.is_due = bool(opened) and number >= opened[0] + prefills - 1
    assert opened == [MIN_ROUNDS_UNOPENED - 2]
    assert asked[0] == opened[0] + prefills


def test_session_opened_for_a_try_is_tried_once() -> None:
    model = model_choice(DEAR_NS, left=400)
    model.drafter.is_due = True  # type: ignore[misc]
    rounds = [number for number in range(2 * MIN_ROUNDS_UNOPENED) if model.should_ask(PROMPT)]
    assert rounds == list(range(rounds[0], rounds[0] + TRY_ROUNDS))


def test_opened_session_is_tried_despite_recent_tries_of_other_requests() -> None:
    """The prompt was prefilled for the try, so it is made even if others tried recently."""
    gains = Gains()
    opened = model_choice(DEAR_NS, left=400, gains=gains)
    opened.drafter.open(PROMPT)
    assert sum(opened.should_ask(PROMPT) for _ in range(20)) == TRY_ROUNDS
    model = model_choice(DEAR_NS, left=400, gains=gains)
    rounds = [number for number in range(2 * MIN_ROUNDS_UNOPENED) if model.should_ask(PROMPT)]
    assert len(rounds) == TRY_ROUNDS and rounds[0] <= MIN_ROUNDS_UNOPENED


def test_round_asks_even_if_no_drafter_opened_a_session() -> None:
    """The failed request for a draft has to be counted."""
    model = model_choice(CHEAP_NS, left=400)
    model.drafter.open = lambda committed, max_wait_s=None: None  # type: ignore[method-assign]
    assert model.should_ask(PROMPT)


@pytest.mark.parametrize("loss", [0.5, 2.5, 6.0])
def test_more_expensive_tries_are_made_less_often(loss: float) -> None:
    """An initial estimate of 1.2 accepted tokens, in the time of those and the loss."""
    model = model_choice((USUAL_TOKENS + loss) * PLAIN_NS / USUAL_FORWARDS, left=400)
    model.drafter.open(PROMPT)
    asked = [number for number in range(600) if model.should_ask(PROMPT)]
    first, second = asked[:TRY_ROUNDS], asked[TRY_ROUNDS : 2 * TRY_ROUNDS]
    for rounds in (first, second):
        assert rounds == list(range(rounds[0], rounds[0] + TRY_ROUNDS))
    waited = TRY_ROUNDS * loss / TRY_COST_PER_ROUND
    assert second[0] - first[-1] == pytest.approx(waited, abs=1)


def test_sessions_share_what_a_try_showed() -> None:
    """All sessions learn from a try, so each of them tries less often."""
    gaps = []
    for sessions in (1, 4):
        model = model_choice((USUAL_TOKENS + 0.5) * PLAIN_NS / USUAL_FORWARDS, left=400)
        cost = with_load(VerifyCost(FLAT.curve), sessions)
        model._controller = Controller(max_nodes=8, verify_cost=cost)
        model.drafter.open(PROMPT)
        asked = [number for number in range(1000) if model.should_ask(PROMPT)]
        gaps.append(asked[TRY_ROUNDS] - asked[TRY_ROUNDS - 1])
    assert gaps[1] > 3 * gaps[0]


def test_draft_on_shared_processors_costs_the_gain_of_all_sessions() -> None:
    """Only the draft's own work counts: waiting for others is its request's own time."""
    cost = VerifyCost((CostPoint(1, PLAIN_NS), CostPoint(32, PLAIN_NS)))
    gain = Gains().of(SPECULATIVE, 0.0, 0.0)
    for waited_ns in (300, 700, 500, 400, 600) * 4:
        gain.observe(3, 4, waited_ns, cost)
    separate, shared = (
        Controller(max_nodes=8, verify_cost=cost, drafter_shares_processor=shares)
        for shares in (False, True)
    )
    assert gain.worth(shared) == gain.worth(separate), "alone it makes no difference"
    with_load(cost, 8)
    assert shared.prices.shared_rate == 8 * shared.prices.rate > 0
    assert gain.worth(separate) - gain.worth(shared) == pytest.approx(7 * shared.prices.rate * 300)


def test_session_must_gain_more_when_its_prefill_delays_other_sessions() -> None:
    opened = []
    for shares, left in ((False, 40), (True, 40), (True, 120), (True, 400)):
        model = model_choice(CHEAP_NS, left)
        cost = with_load(VerifyCost(FLAT.curve), 3)
        model._controller = Controller(
            max_nodes=8, verify_cost=cost, drafter_shares_processor=shares
        )
        model.open(PROMPT)
        opened.append(model.drafter.is_requested)
    assert opened == [True, False, False, True]


def test_try_skips_the_model_when_free_sources_promise_much() -> None:
    """Eight tokens come free, so the model's time costs more than in its first round."""
    model = model_choice(DEAR_NS, left=400)
    model.drafter.open(PROMPT)
    assert model.should_ask(PROMPT)
    assert not any(model.should_ask(PROMPT, Offer(tokens=8.0)) for _ in range(TRY_ROUNDS))
    asked = [model.should_ask(PROMPT) for _ in range(2 * TRY_ROUNDS)]
    assert sum(asked) == TRY_ROUNDS - 1 and all(asked[: TRY_ROUNDS - 1])


def test_no_try_directly_after_a_round_that_paid() -> None:
    """A try would show nothing that the previous round has not shown."""
    model = model_choice(CHEAP_NS, left=400)
    model.drafter.open(PROMPT)
    for _ in range(20):
        assert model.should_ask(PROMPT)
        model.observe(accepted=1, nodes=4, draft_ns=CHEAP_NS)
        assert not model.should_ask(PROMPT, Offer(tokens=8.0))


def test_drafter_outperformed_by_phrases_is_asked_occasionally() -> None:
    """Otherwise an improvement of the drafter would never be noticed."""
    model = model_choice(CHEAP_NS, left=400)
    model.drafter.open(PROMPT)
    offer = Offer(tokens=4.0, nodes=4)
    asked = [number for number in range(800) if model.should_ask(PROMPT, offer)]
    assert 0 < len(asked) < TRY_COST_PER_ROUND * 800


def test_overestimated_draft_model_cost_is_soon_corrected() -> None:
    """A draft model's cost may have been measured on a busy machine."""
    model = model_choice(DEAR_NS, left=10_000)
    model.drafter.open(PROMPT)
    asked = []
    for number in range(1500):
        if model.should_ask(PROMPT):
            asked.append(number)
            model.observe(accepted=4, nodes=5, draft_ns=CHEAP_NS)
    assert asked[-1000:] == list(range(500, 1500))


def test_draft_overhead_beyond_forwards_is_soon_learned() -> None:
    """Other requests know it too; one slow outlier is ignored."""
    gains = Gains()
    chosen = new_choice(gains, draft_ns=CHEAP_NS)
    for draft_ns in (100 * DEAR_NS, DEAR_NS, DEAR_NS):
        chosen.observe(0, 4, draft_ns)
    next_gain = gains.of(PROMPT_LOOKUP, 0.0, CHEAP_NS)
    assert next_gain.shared.draft_ns == DEAR_NS
    assert next_gain.means.tokens > USUAL_TOKENS / 2  # which takes more rounds to learn


def test_offer_counts_by_its_difference_from_the_usual_offer() -> None:
    """The accepted tokens of rounds with such an offer are known already."""
    offered, alone = (Gains().of(PROMPT_LOOKUP, 0.0, 0.0) for _ in range(2))
    for _ in range(400):
        offered.observe(3, 4, 0, FLAT, Offer(2.0))
        alone.observe(3, 4, 0, FLAT)
    prices = controller()
    assert offered.worth(prices, Offer(2.0)) == pytest.approx(alone.worth(prices))
    assert offered.worth(prices, Offer(1.0)) == pytest.approx(alone.worth(prices) - SHARE_OF_OFFER)


def test_expected_tokens_are_never_negative() -> None:
    """The expected tokens are never negative, even if phrases promised much in vain."""
    gain = Gains().of(PROMPT_LOOKUP, 0.0, 0.0)
    for _ in range(400):
        gain.observe(0, 4, 0, FLAT, Offer(9.0))
    assert gain.worth(controller()) == pytest.approx(0)  # the one token that its time brings anyway


def test_large_offer_is_priced_as_a_large_draft() -> None:
    """Such a draft used to be priced as a usual one: on repetitive text it looked cheap."""
    cost = VerifyCost((CostPoint(1, PLAIN_NS), CostPoint(33, 2 * PLAIN_NS)))
    prices = Controller(max_nodes=32, verify_cost=cost)
    gain = Gains().of(PROMPT_LOOKUP, 0.0, 0.0)
    for _ in range(400):
        gain.observe(2, 6, 0, cost, Offer(1.0, nodes=2))
    usual, large = (gain.worth(prices, Offer(1.0, nodes)) for nodes in (2, 12))
    assert usual - large == pytest.approx(SHARE_OF_OFFER * 10 / 32)


def test_usual_number_of_nodes_is_priced() -> None:
    cost = VerifyCost((CostPoint(1, PLAIN_NS), CostPoint(33, 2 * PLAIN_NS)))
    prices = Controller(max_nodes=32, verify_cost=cost)
    small, large = (Gains().of(PROMPT_LOOKUP, 0.0, 0.0) for _ in range(2))
    for _ in range(400):
        small.observe(2, 4, 0, cost)
        large.observe(2, 20, 0, cost)
    assert small.worth(prices) - large.worth(prices) == pytest.approx(16 / 32)


def test_draft_time_delays_only_its_own_request() -> None:
    cost = VerifyCost((CostPoint(1, PLAIN_NS), CostPoint(32, PLAIN_NS)))
    controller = Controller(max_nodes=8, verify_cost=cost)
    for _ in range(20):
        cost.load.observe(9, ServiceTimings(batch_size=8, batch_rows=16))
    free, costly = (Gains().of(PROMPT_LOOKUP, 0.0, ns) for ns in (0.0, PLAIN_NS / USUAL_FORWARDS))
    assert controller.prices.shared_rate == pytest.approx(8 * controller.prices.rate)
    assert free.worth(controller) - costly.worth(controller) == pytest.approx(1)


def test_prior_weighs_as_much_as_a_few_rounds() -> None:
    gain = Gains().of(PROMPT_LOOKUP, 0.0, 0.0)
    gain.observe(6, 4, 0, FLAT)
    assert gain.means.tokens == pytest.approx(
        (PRIOR_ROUNDS * USUAL_TOKENS + 6) / (PRIOR_ROUNDS + 1)
    )


def test_next_request_starts_from_the_gains_of_drafts() -> None:
    gains = Gains()
    for _ in range(300):
        gains.of(PROMPT_LOOKUP, 0.0, 0.0).observe(
            5, 9, 0, FLAT, Offer(0.5, 3)
        )  # each request has one round
    means = gains.of(PROMPT_LOOKUP, 0.0, 0.0).means
    assert (means.tokens, means.nodes) == pytest.approx((5, 9), rel=0.02)
    assert (means.offered_tokens, means.offered_nodes) == pytest.approx((0.5, 3), rel=0.02)


def test_faster_round_lowers_the_cost_of_its_draft() -> None:
    gain = Gains().of(PROMPT_LOOKUP, 0.0, 0.0)
    for _ in range(20):
        gain.shared.observe_delay(gain.observe(1, 4, DEAR_NS, FLAT), -PLAIN_NS)
    assert gain.shared.draft_ns == DEAR_NS - PLAIN_NS
