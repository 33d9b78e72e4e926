"""Acceptance probability of an offered token that the draft model has scored: two scores combined.

A logistic regression on the log-odds of the offer's estimate, the log-odds of the draft model's
share (noise included), and whether the token is the draft model's first choice. The weights are
updated with every offered node that the target has judged, by an extended Kalman filter: the less
certain a weight is, the faster it moves. A table over both scores would need thousands of trials to
say as much (decision 44).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from draftloop.runtime.compiling import compiled
from draftloop.runtime.records import Floats

# Initial weights: intercept, draft model's share, offer, first choice of the draft model. For free
# sources they lie between those that the bundled pair converges to at temperature 0.8 and in greedy
# decoding. A smaller draft model knows nothing that the larger one does not, so of what it offers
# only the larger model's share counts.
FREE, SMALLER = 0, 1
USUAL = (0.2, 0.65, 0.3, 0.8), (0.0, 1.0, 0.0, 0.0)
# Initial variance of a weight, which is also its maximum, and what each trial adds: texts change.
MAX_VARIANCE, DRIFT = 0.1, 1e-5
# Probabilities are clipped to [1 - MAX_PROBABILITY, MAX_PROBABILITY].
MAX_PROBABILITY = 0.9999


class _Arrays(NamedTuple):
    """`weights`: [sources, weights]; `covariances`, their covariances: [sources, weights, weights].

    The source is FREE or SMALLER.
    """

    weights: Floats
    covariances: Floats


class Weighing(_Arrays):
    """The regressions for offers of free sources (FREE) and of a smaller draft model (SMALLER)."""

    __slots__ = ()

    def __new__(cls) -> Weighing:
        weights = np.array(USUAL)
        kinds, size = weights.shape
        return super().__new__(cls, weights, np.tile(MAX_VARIANCE * np.eye(size), (kinds, 1, 1)))


@compiled
def log_odds(chance: float) -> float:
    """Log-odds of a probability, clipped by MAX_PROBABILITY; NaN counts as 0."""
    clipped = 1 - MAX_PROBABILITY
    if chance > clipped:
        clipped = min(chance, MAX_PROBABILITY)
    return float(np.log(clipped / (1 - clipped)))


@compiled
def chance(
    known: Weighing, source: int, share_odds: float, offer_odds: float, is_first: bool
) -> float:
    """Acceptance probability of a node of source `source`.

    share_odds: log-odds of the draft model's share; offer_odds: of the offer's estimate; is_first:
    whether the token is the draft model's first choice.
    """
    weights = known.weights[source]
    total = weights[0] + weights[1] * share_odds + weights[2] * offer_odds + weights[3] * is_first
    return float(1 / (1 + np.exp(-total)))


@compiled
def learn(
    known: Weighing, source: int, share_odds: float, offer_odds: float, is_first: bool, right: bool
) -> None:
    """Updates the weights with one judged node; the arguments are those of `chance`."""
    weights, covariances = known.weights[source], known.covariances[source]
    guess, size = chance(known, source, share_odds, offer_odds, is_first), len(weights)
    inputs, moved = np.array((1.0, share_odds, offer_odds, 1.0 * is_first)), np.zeros(size)
    for place in range(size):
        for other in range(size):
            moved[place] += covariances[place, other] * inputs[other]
    information = guess * (1 - guess)  # of one trial: little if the outcome was nearly certain
    whole = 1 + information * np.sum(inputs * moved)
    for place in range(size):
        weights[place] += (right - guess) * moved[place] / whole
        for other in range(size):
            covariances[place, other] -= information * moved[place] * moved[other] / whole
        covariances[place, place] = min(covariances[place, place] + DRIFT, MAX_VARIANCE)
