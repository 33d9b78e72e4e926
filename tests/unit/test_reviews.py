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
    known = new_candidates()
    known.offer(DraftTree.chain([TOKEN], source, [OFFERED]), 8)
    guesses = Guesses(np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([HEARD]))
    score_offered(known._tree, known._learned, guesses, np.array([[first, 1]]))
    return known


@pytest.mark.parametrize("first", [TOKEN, OTHER])
@pytest.mark.parametrize(
    ("source", "whose"), [(TokenSource.PHRASE, FREE), (TokenSource.DRAFT_MODEL, SMALLER)]
)
def test_estimate_of_a_reviewed_node_combines_both_scores(
    source: TokenSource, whose: int, first: int
) -> None:
    known = reviewed_candidates(source, first)
    (node,) = known.nodes
    heard, told = log_odds(HEARD), log_odds(OFFERED)
    assert (node["judged_by"], node["share_odds"], node["offer_odds"]) == (BY_REVIEWS, heard, told)
    assert node["is_first"] == (first == TOKEN)
    said = chance(known._learned.reviews, whose, heard, told, first == TOKEN)
    assert node["estimate"] == pytest.approx(said)


@pytest.mark.parametrize("right", [True, False])
def test_outcome_updates_only_the_weights_of_its_source(right: bool) -> None:
    # A judged node changes only the weights for its kind of source.
    known = reviewed_candidates(TokenSource.PHRASE, TOKEN)
    weights = known._learned.reviews.weights
    known.judge([TOKEN if right else OTHER])
    up = weights[FREE] > np.array(USUAL[FREE])
    # The log-odds of the offer are negative, so a hit makes its weight smaller.
    assert up.tolist() == ([True, True, False, True] if right else [False, False, True, False])
    assert weights[SMALLER].tolist() == list(USUAL[SMALLER])


def test_both_scores_and_a_first_guess_raise_the_estimate() -> None:
    known = Weighing()
    says = functools.partial(chance, known, FREE)
    assert says(-1.0, 0.0, False) < says(1.0, 0.0, False) < says(1.0, 1.0, False)
    assert says(1.0, 1.0, False) < says(1.0, 1.0, True)


def test_certain_scores_do_not_override_the_other() -> None:
    # Scores of 0 and 1 are limited, so that the other score still counts.
    for sure in (0.0, 1.0):
        assert log_odds(sure) == pytest.approx(log_odds(abs(sure - 1e-4)))
    known = Weighing()
    never = chance(known, FREE, log_odds(0.0), log_odds(0.999), False)
    assert 0 < chance(known, FREE, log_odds(0.0), log_odds(0.1), False) < never < 0.5


def test_log_odds_of_nan_is_that_of_zero() -> None:
    """A NaN would stay in the weights, which all sessions share."""
    assert log_odds(float("nan")) == log_odds(0.0)


def test_weights_stay_finite_and_well_conditioned() -> None:
    known, random = Weighing(), np.random.default_rng(3)
    sure = log_odds(1.0)
    for _ in range(20_000):
        heard, told = random.choice([-sure, 0.0, sure], 2)
        learn(known, FREE, heard, told, bool(random.integers(2)), bool(random.integers(2)))
    assert np.isfinite(known.weights).all()
    spread = known.covariances[FREE]
    assert np.linalg.eigvalsh(spread).min() > 0
    assert spread == pytest.approx(spread.T)
    assert spread.max() <= MAX_VARIANCE


def test_weights_converge_to_the_true_probabilities() -> None:
    """When the offer carries no information and the draft model is overconfident."""
    known, random = Weighing(), np.random.default_rng(5)
    missed = []
    for _ in range(4000):
        heard, told = random.normal(0, 2, 2)
        truth = 1 / (1 + np.exp(1 - heard / 2))
        missed.append(abs(chance(known, FREE, heard, told, False) - truth))
        learn(known, FREE, heard, told, False, bool(random.random() < truth))
    assert np.mean(missed[-500:]) < 0.05 < 0.15 < np.mean(missed[:50])
    constant, heard, told, _ = known.weights[FREE]
    assert constant == pytest.approx(-1, abs=0.2)
    assert heard == pytest.approx(0.5, abs=0.1)
    assert told == pytest.approx(0, abs=0.1)


def test_single_surprise_changes_the_estimate_little() -> None:
    known = Weighing()
    before = chance(known, FREE, 2.0, 1.0, True)
    learn(known, FREE, 2.0, 1.0, True, False)
    assert before - 0.1 < chance(known, FREE, 2.0, 1.0, True) < before


def test_nodes_below_a_wrong_token_are_not_judged() -> None:
    """A node's token may occur in the text after another token than its parent's."""
    known = new_candidates()
    known.offer(DraftTree.chain([TOKEN, OTHER], TokenSource.DRAFT_MODEL, [0.5, 0.5]), 8)
    cells = [cell_of(TokenSource.DRAFT_MODEL, 0.5, depth) for depth in (1, 2)]
    known.nodes["judged_by"], known.nodes["cell"] = BY_CALIBRATION, cells
    trials = known._learned.calibration.trials
    known.judge([4, OTHER])
    assert [trials[cell] for cell in cells] == [1, 0]
    known.judge([TOKEN, OTHER])
    assert [trials[cell] > 0 for cell in cells] == [True, True]
