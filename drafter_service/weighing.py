"""How likely an offered token is once the draft model has scored it: two opinions made one.

A logistic regression: the log-odds of what the offer says and of the draft model's share, noise
included, each with its weight, and more for what is the draft model's first guess as well. The
weights follow every offered node that the target judged, the faster the less is known of them: an
extended Kalman filter. A table of both scores would need thousands of trials before its cells said
as much (decision 44).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from draftloop.runtime.compiling import compiled
from draftloop.runtime.records import Floats

# Weights: of being offered at all, of the draft model's share, of the offer, of being the draft
# model's first guess. What they begin with lies between what the bundled pair comes to at
# temperature 0.8 and in greedy decoding. A smaller draft model knows less of the same: of what it
# offers the larger one's word counts.
FREE, SMALLER = 0, 1
USUAL = (0.2, 0.65, 0.3, 0.8), (0.0, 1.0, 0.0, 0.0)
# Variance of a weight before anything is known of it, and what one trial adds to it: texts change.
UNSURE, DRIFT = 0.1, 1e-5
# Opinions that are surer than this count as this sure.
SUREST = 0.9999


class _Arrays(NamedTuple):
    """`weights` [whose offer, weights] and their covariance, [whose offer, weights, weights]."""

    weights: Floats
    unsure: Floats


class Weighing(_Arrays):
    """What is known of offers of phrases, texts and successors, and of a smaller draft model's."""

    __slots__ = ()

    def __new__(cls) -> Weighing:
        weights = np.array(USUAL)
        kinds, size = weights.shape
        return super().__new__(cls, weights, np.tile(UNSURE * np.eye(size), (kinds, 1, 1)))


@compiled
def log_odds(chance: float) -> float:
    """Of a probability, no surer than what counts; what is no number is none."""
    sure = 1 - SUREST
    if chance > sure:
        sure = min(chance, SUREST)
    return float(np.log(sure / (1 - sure)))


@compiled
def chance(
    known: Weighing, whose: int, share_odds: float, offer_odds: float, is_first: bool
) -> float:
    """Probability of a node: log-odds of the draft model's share and of the offer's estimate."""
    weights = known.weights[whose]
    total = weights[0] + weights[1] * share_odds + weights[2] * offer_odds + weights[3] * is_first
    return float(1 / (1 + np.exp(-total)))


@compiled
def learn(
    known: Weighing, whose: int, share_odds: float, offer_odds: float, is_first: bool, right: bool
) -> None:
    """Takes in whether such a node was right."""
    weights, unsure = known.weights[whose], known.unsure[whose]
    guess, size = chance(known, whose, share_odds, offer_odds, is_first), len(weights)
    said, moved = np.array((1.0, share_odds, offer_odds, 1.0 * is_first)), np.zeros(size)
    for place in range(size):
        for other in range(size):
            moved[place] += unsure[place, other] * said[other]
    information = guess * (1 - guess)  # of a trial: little where the answer was sure
    whole = 1 + information * np.sum(said * moved)
    for place in range(size):
        weights[place] += (right - guess) * moved[place] / whole
        for other in range(size):
            unsure[place, other] -= information * moved[place] * moved[other] / whole
        unsure[place, place] = min(unsure[place, place] + DRIFT, UNSURE)
