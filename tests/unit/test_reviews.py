"""Reviews: the probability of an offered node from its source's and the draft model's scores."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from drafter_service.candidates import Candidates
from drafter_service.strategies.fused import Fused
from drafter_service.tree_children import Offered as Guesses
from drafter_service.tree_children import score_offered
from drafter_service.tree_nodes import BY_CALIBRATION, BY_REVIEWS
from drafter_service.weighing import (
    FREE,
    MAX_VARIANCE,
    SMALLER,
    USUAL,
    Weighing,
    chance,
    learn,
    log_odds,
)
from draftloop.calibration import cell_of
from draftloop.request import SamplingParameters
from draftloop.tree import DraftTree, TokenSource
from tests.support.scripted_drafter import ScriptedModel, session_of
from tests.support.toy_model import TableModel

TOKEN, OTHER = 3, 2
OFFERED, HEARD = 0.3, 0.9  # by the source, and by the draft model


def new_candidates() -> Candidates:
    model = ScriptedModel(TableModel(vocabulary_size=5, seed=0).logits, 5)
    return Fused(session_of(model, [1, 0, 2], SamplingParameters(seed=7))).candidates


def reviewed_candidates(source: TokenSource, first: int) -> Candidates:
    """Candidates with one offered node, reviewed beside the draft model's best guess."""
    candidates = new_candidates()
    candidates.offer(DraftTree.chain([TOKEN], source, [OFFERED]), 8)
    zeros, ones = np.zeros(1, np.int64), np.ones(1, np.int64)
    guesses = Guesses(zeros, zeros, np.array([HEARD]), ones)
    score_offered(candidates._tree, candidates._learned, guesses, np.array([[first, 1]]))
    return candidates


@pytest.mark.parametrize("first", [TOKEN, OTHER])
@pytest.mark.parametrize(
    ("source", "weights_row"), [(TokenSource.PHRASE, FREE), (TokenSource.DRAFT_MODEL, SMALLER)]
)
def test_estimate_of_a_reviewed_node_combines_both_scores(
    source: TokenSource, weights_row: int, first: int
) -> None:
    candidates = reviewed_candidates(source, first)
    (node,) = candidates.nodes
    share_odds, offer_odds = log_odds(HEARD), log_odds(OFFERED)
    assert (node["judged_by"], node["share_odds"], node["offer_odds"]) == (
        BY_REVIEWS,
        share_odds,
        offer_odds,
    )
    assert node["is_first"] == (first == TOKEN)
    expected = chance(
        candidates._learned.reviews, weights_row, share_odds, offer_odds, first == TOKEN
    )
    assert node["estimate"] == pytest.approx(expected)


@pytest.mark.parametrize("is_right", [True, False])
def test_outcome_updates_only_the_weights_of_its_source(is_right: bool) -> None:
    # A judged node changes only the weights for its kind of source.
    candidates = reviewed_candidates(TokenSource.PHRASE, TOKEN)
    weights = candidates._learned.reviews.weights
    candidates.judge([TOKEN if is_right else OTHER])
    raised = weights[FREE] > np.array(USUAL[FREE])
    # The log-odds of the offer are negative, so a hit makes its weight smaller.
    assert raised.tolist() == (
        [True, True, False, True] if is_right else [False, False, True, False]
    )
    assert weights[SMALLER].tolist() == list(USUAL[SMALLER])


def test_both_scores_and_a_first_guess_raise_the_estimate() -> None:
    weighing = Weighing()
    estimate = functools.partial(chance, weighing, FREE)
    assert estimate(-1.0, 0.0, False) < estimate(1.0, 0.0, False) < estimate(1.0, 1.0, False)
    assert estimate(1.0, 1.0, False) < estimate(1.0, 1.0, True)


def test_certain_scores_do_not_override_the_other() -> None:
    # Scores of 0 and 1 are limited, so that the other score still counts.
    for probability in (0.0, 1.0):
        assert log_odds(probability) == pytest.approx(log_odds(abs(probability - 1e-4)))
    weighing = Weighing()
    lowest = chance(weighing, FREE, log_odds(0.0), log_odds(0.999), False)
    assert 0 < chance(weighing, FREE, log_odds(0.0), log_odds(0.1), False) < lowest < 0.5


def test_log_odds_of_nan_is_that_of_zero() -> None:
    """A NaN would stay in the weights, which all sessions share."""
    assert log_odds(float("nan")) == log_odds(0.0)


def test_weights_stay_finite_and_well_conditioned() -> None:
    weighing, random = Weighing(), np.random.default_rng(3)
    limit = log_odds(1.0)
    for _ in range(20_000):
        share_odds, offer_odds = random.choice([-limit, 0.0, limit], 2)
        learn(
            weighing,
            FREE,
            share_odds,
            offer_odds,
            bool(random.integers(2)),
            bool(random.integers(2)),
        )
    assert np.isfinite(weighing.weights).all()
    spread = weighing.covariances[FREE]
    assert np.linalg.eigvalsh(spread).min() > 0
    assert spread == pytest.approx(spread.T)
    assert spread.max() <= MAX_VARIANCE


def test_weights_converge_to_the_true_probabilities() -> None:
    """The offered score carries no information here, and the draft model is overconfident."""
    weighing, random = Weighing(), np.random.default_rng(5)
    missed = []
    for _ in range(4000):
        share_odds, offer_odds = random.normal(0, 2, 2)
        probability = 1 / (1 + np.exp(1 - share_odds / 2))
        missed.append(abs(chance(weighing, FREE, share_odds, offer_odds, False) - probability))
        learn(weighing, FREE, share_odds, offer_odds, False, bool(random.random() < probability))
    assert np.mean(missed[-500:]) < 0.05 < 0.15 < np.mean(missed[:50])
    constant, share_odds, offer_odds, _ = weighing.weights[FREE]
    assert constant == pytest.approx(-1, abs=0.2)
    assert share_odds == pytest.approx(0.5, abs=0.1)
    assert offer_odds == pytest.approx(0, abs=0.1)


def test_single_surprise_changes_the_estimate_little() -> None:
    weighing = Weighing()
    before = chance(weighing, FREE, 2.0, 1.0, True)
    learn(weighing, FREE, 2.0, 1.0, True, False)
    assert before - 0.1 < chance(weighing, FREE, 2.0, 1.0, True) < before


def test_nodes_below_a_wrong_token_are_not_judged() -> None:
    """The text may contain the node's token, but after another token than its parent's."""
    candidates = new_candidates()
    candidates.offer(DraftTree.chain([TOKEN, OTHER], TokenSource.DRAFT_MODEL, [0.5, 0.5]), 8)
    cells = [cell_of(TokenSource.DRAFT_MODEL, 0.5, depth) for depth in (1, 2)]
    candidates.nodes["judged_by"], candidates.nodes["cell"] = BY_CALIBRATION, cells
    trials = candidates._learned.calibration.trials
    candidates.judge([4, OTHER])
    assert [trials[cell] for cell in cells] == [1, 0]
    candidates.judge([TOKEN, OTHER])
    assert [trials[cell] > 0 for cell in cells] == [True, True]
