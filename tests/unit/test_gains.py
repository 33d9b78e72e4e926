"""What all requests together learned about drafts: which of them share it, and its bounds."""

from __future__ import annotations

from collections import deque

import pytest

from draftloop.model_info import CostPoint
from draftloop.phrase import PhraseScope
from draftloop.speculation import (
    FUSED,
    LOOKAHEAD,
    OUROBOROS,
    SPECULATIVE,
    FusedParameters,
    OuroborosParameters,
    Speculation,
)
from orchestrator.budget import Controller
from orchestrator.costs import VerifyCost
from orchestrator.gains import MAX_METHODS, Gains, SharedGain
from orchestrator.selection import Offer

ALL = Speculation(strategy=FUSED)
ALONE = Speculation(
    strategy=FUSED, fused=FusedParameters(phrases=False, own_text=False, recycling=False)
)

FLAT = VerifyCost((CostPoint(1, 100), CostPoint(32, 100)))


def known_tokens(gains: Gains, speculation: Speculation, temperature: float = 0.8) -> float:
    return gains.of(speculation.method, temperature, 1.0).means.tokens


def test_gains_of_the_model_alone_and_with_other_sources_are_separate() -> None:
    """A draft model brings more where nothing else drafts; beside phrases it is asked in vain."""
    gains = Gains()
    before = known_tokens(gains, ALL)
    for _ in range(50):
        gain = gains.of(ALONE.method, 0.8, 1.0)
        gain.observe(accepted=6, nodes=8, draft_ns=1, cost=FLAT)
        gains.pace_of(ALONE.method, 0.8).observe(7, 1)
    assert known_tokens(gains, ALONE) > 5 > before == known_tokens(gains, ALL)
    assert gains.pace_of(ALONE.method, 0.8).tokens_per_round > 0
    assert gains.pace_of(ALL.method, 0.8).tokens_per_round == 0
    assert known_tokens(gains, ALONE, temperature=0.0) == before


def test_unused_options_do_not_separate_methods() -> None:
    # Parameters that a strategy ignores do not separate what requests learn.
    for strategy in (SPECULATIVE, LOOKAHEAD):
        default = Speculation(strategy=strategy)
        with_unused_options = Speculation(
            strategy=strategy,
            phrases=PhraseScope.OFF,
            ouroboros=OuroborosParameters(history=False),
            fused=FusedParameters(recycling=False),
        )
        assert default.method == with_unused_options.method
    assert Speculation(strategy=SPECULATIVE).method != Speculation(strategy=OUROBOROS).method


def test_method_differs_with_and_without_phrases() -> None:
    # Scopes with phrases learn together; the scope `off` learns apart.
    shared, private, off = (
        Speculation(strategy=OUROBOROS, phrases=scope)
        for scope in (PhraseScope.SHARED, PhraseScope.PRIVATE, PhraseScope.OFF)
    )
    assert shared.method == private.method != off.method


def test_number_of_remembered_methods_is_bounded() -> None:
    gains = Gains()
    for _ in range(50):
        gains.of(ALL.method, 0.8, 1.0).observe(accepted=6, nodes=8, draft_ns=1, cost=FLAT)
    remembered = known_tokens(gains, ALL)
    for number in range(3 * MAX_METHODS):
        known_tokens(gains, Speculation(strategy=OUROBOROS), temperature=0.0)
        gains.of((FUSED, number), 0.8, 1.0)
        assert known_tokens(gains, ALL) == remembered  # what is asked for is kept
    assert len(gains._known) == MAX_METHODS
    newest, oldest = gains.of((FUSED, number), 0.8, 1.0), gains.of((FUSED, 0), 0.8, 1.0)
    for gain in (newest, oldest):
        gain.observe(accepted=6, nodes=8, draft_ns=1, cost=FLAT)
    assert gains.of((FUSED, number), 0.8, 1.0).means.tokens == newest.means.tokens


def test_single_stalled_draft_does_not_replace_the_prior() -> None:
    # A single very slow draft does not change the first estimates.
    shared = SharedGain(deque([100.0]))
    shared.observe_draft(1e9)
    assert (shared.draft_ns, shared.work_ns) == (100, 100)


def test_round_delay_counts_immediately() -> None:
    """The value for a waiting request may be negative; work may not."""
    shared = SharedGain(deque([100.0]))
    shared.observe_delay(shared.observe_draft(300), -400)
    assert (shared.draft_ns, shared.work_ns) == (-100, 0)


def test_delay_is_added_to_its_own_draft() -> None:
    """Drafts of other requests on other replicas may have been observed since."""
    shared = SharedGain(deque([100.0], 3))
    draft_id = shared.observe_draft(200)
    shared.observe_draft(300)
    shared.observe_delay(draft_id, 1000)
    assert list(shared.draft_times) == [100, 1200, 300]
    shared.observe_draft(400)
    shared.observe_draft(500)
    shared.observe_delay(draft_id, 1000)
    assert list(shared.draft_times) == [300, 400, 500]


def test_expected_draft_size_without_load_is_the_usual_one() -> None:
    """A smaller draft would be worth more, but this comparison does not make drafts smaller."""
    cost = VerifyCost((CostPoint(1, 1000), CostPoint(33, 2000)))
    gain = Gains().of(ALL.method, 0.8, 0.0)
    for _ in range(400):
        gain.observe(accepted=1, nodes=32, draft_ns=0, cost=cost)
    prices = Controller(max_nodes=32, verify_cost=cost)
    assert gain.worth(prices) == pytest.approx(0, abs=0.01)  # two tokens in the time of two


def test_cost_of_drafts_is_the_mean_cost_and_not_that_of_their_mean_size() -> None:
    # Costs are staircases. Drafts of 4 and 9 nodes take the time of one and two steps, and their
    # mean size of six and a half, which no draft has, that of two.
    cost = VerifyCost((CostPoint(1, 100), CostPoint(5, 100), CostPoint(6, 200), CostPoint(10, 200)))
    controller = Controller(max_nodes=9, verify_cost=cost, verify_uncut=True)
    gain = Gains().of(OUROBOROS, 0.0, 0.0)
    for nodes in (4, 9) * 400:
        gain.observe(accepted=nodes, nodes=nodes, draft_ns=0, cost=cost)
    assert gain.worth(controller) == pytest.approx(1 + 6.5 - controller.prices.rate * 150, rel=0.05)


@pytest.mark.parametrize("verify_uncut", [False, True])
def test_only_a_draft_that_is_cut_loses_no_more_than_its_time(verify_uncut: bool) -> None:
    cost = VerifyCost((CostPoint(1, 100), CostPoint(17, 1700)))
    controller = Controller(max_nodes=16, verify_cost=cost, verify_uncut=verify_uncut)
    gain = Gains().of(OUROBOROS, 0.0, 0.0)
    for _ in range(100):
        gain.observe(accepted=0, nodes=8, draft_ns=0, cost=cost)
    assert (gain.worth(controller) < controller.worth() - 1) is verify_uncut


def test_free_sources_may_win_where_sizes_are_fixed() -> None:
    """Fixed drafts are not cut: an offer of more tokens is worth more, though time has no price."""
    controller = Controller(max_nodes=16, verify_cost=VerifyCost((CostPoint(1, 100),)), fixed=True)
    gain = Gains().of(OUROBOROS, 0.0, 0.0)
    offer = Offer(tokens=9.0, nodes=9)
    assert gain.worth(controller, offer) < controller.worth(offer)
