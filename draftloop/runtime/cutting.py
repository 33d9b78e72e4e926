"""Compiled: top-k, top-p and min-p on a CPU, without sorting the vocabulary.

Tokens are grouped into sizes: those of one size have weights with the same exponent and first bits.
Sums over sizes show in which size the limit lies; only the tokens of that size are sorted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from draftloop.runtime.compiling import compiled, vectorised
from draftloop.runtime.exponent import EXP2

Floats32 = npt.NDArray[np.float32]
Words = npt.NDArray[np.int32]
Cuts = npt.NDArray[np.float64]

TEMPERATURE, TOP_K, TOP_P, MIN_P = 0, 1, 2, 3  # indices of `Cuts`; empty `Cuts` filter nothing
NO_CUTS: Cuts = np.zeros(0)

BITS_BELOW = 20
SIZES = (0x3F800000 >> BITS_BELOW) + 1  # as the greatest weight is 1.0
MIN_POWER, MAX_FACTOR = np.float32(-126), 3e38
A, B, C, D, E, F, G = (np.float32(each) for each in EXP2)
LOG2_E = math.log2(math.e)
HALF, EXPONENT = np.float32(0.5), np.float32(1 << 23)


class Scratch(NamedTuple):
    """Buffers for one row: weights; the same memory as bits; exponents; weights of one size."""

    weights: Floats32
    bits: Words
    exponents: Words
    likely: Floats32


def scratch(vocabulary: int) -> Scratch:
    """Buffers for rows of `vocabulary` tokens."""
    weights, likely = np.empty((2, vocabulary), np.float32)
    return Scratch(weights, weights.view(np.int32), np.empty(vocabulary, np.int32), likely)


@compiled
def apply_cuts(logits: Floats32, cuts: Cuts, known: Scratch) -> None:
    """Writes -inf over the tokens that `cuts` exclude, in every row [rows, vocabulary].

    Of equally likely tokens at the limit, top-p keeps the lower ids and top-k keeps all. The
    likeliest token always stays. Rows that hold NaN or +inf are unchanged.
    """
    for place in range(len(logits)):
        row = logits[place]
        if non_finite_count(row):
            continue  # its weights cannot be computed
        weigh(row, cuts[TEMPERATURE], known)
        least_of_k = np.float32(0)
        if 0 < cuts[TOP_K] < len(row):
            least_of_k = weight_of_rank(known, int(cuts[TOP_K]))
        least, surplus = np.float32(0), 0
        if cuts[TOP_P] < 1:
            least, surplus = nucleus(known, cuts[TOP_P], least_of_k)
        exclude_below(row, known.weights, max(least, least_of_k, np.float32(cuts[MIN_P])))
        token = len(row)
        while surplus:
            token -= 1
            if known.weights[token] == least:
                row[token] = -np.inf
                surplus -= 1


@compiled
def non_finite_count(row: Floats32) -> int:
    """Number of NaN and +inf in a row; 1 if all are -inf, as there is nothing to filter then."""
    count = possible = 0
    for logit in row:
        count += not logit < np.inf
        possible += logit > -np.inf
    return count if possible else 1


@vectorised
def exclude_below(row: Floats32, weights: Floats32, least: np.float32) -> None:
    """Writes -inf over tokens whose weight is less than `least`."""
    for token in range(len(row)):
        row[token] = row[token] if weights[token] >= least else -np.inf


@vectorised
def weigh(row: Floats32, temperature: float, known: Scratch) -> None:
    """Computes the weights, exp((logit - most) / temperature), by powers of two."""
    most = row[0]
    for logit in row:
        most = max(most, logit)
    factor = np.float32(min(LOG2_E / temperature, MAX_FACTOR))
    weights, exponents, bits = known.weights, known.exponents, known.bits
    for token in range(len(row)):
        power = max((row[token] - most) * factor, MIN_POWER)
        whole = np.floor(power + HALF)
        x = power - whole
        weights[token] = (((((A * x + B) * x + C) * x + D) * x + E) * x + F) * x + G
        exponents[token] = np.int32(whole * EXPONENT)
    for token in range(len(row)):
        bits[token] += exponents[token]


@compiled
def weight_of_rank(known: Scratch, count: int) -> np.float32:
    """The weight of the `count`-th likeliest token, counted from 1."""
    counts = np.zeros(SIZES, np.int64)
    for word in known.bits:
        counts[word >> BITS_BELOW] += 1
    size = SIZES - 1
    while counts[size] < count:
        count -= counts[size]
        size -= 1
    found = weights_of_size(known, size, np.float32(0))
    least: np.float32 = found[len(found) - count]
    return least


@compiled
def nucleus(known: Scratch, top_p: float, least: np.float32) -> tuple[np.float32, int]:
    """The least weight that top-p keeps, and how many tokens of exactly that weight it excludes.

    Considers tokens with a weight of at least `least`. Returns 0, 0 if all are kept.
    """
    masses, total = np.zeros(SIZES), 0.0
    # All tokens below the floor together have less than half of the mass that is excluded.
    floor = np.float32((1 - top_p) / (2 * len(known.weights)))
    for token in range(len(known.weights)):
        weight = known.weights[token]
        if weight >= least:
            total += weight
            if weight > floor:
                masses[known.bits[token] >> BITS_BELOW] += weight
    target_mass, size, before = top_p * total, SIZES - 1, 0.0
    while before + masses[size] < target_mass:
        before += masses[size]
        size -= 1
        if size < 0:  # due to rounding, all masses together do not reach `target_mass`
            return np.float32(0), 0
    found = weights_of_size(known, size, least)
    place, last = len(found), np.float32(0)
    while place and before < target_mass:
        place -= 1
        last = found[place]
        before += last
    surplus = 0
    while surplus < place and found[place - 1 - surplus] == last:
        surplus += 1
    return last, surplus


@compiled
def weights_of_size(known: Scratch, size: int, least: np.float32) -> Floats32:
    """The weights of one size that are at least `least`, in ascending order."""
    count = 0
    for token in range(len(known.weights)):
        if known.bits[token] >> BITS_BELOW == size and known.weights[token] >= least:
            known.likely[count] = known.weights[token]
            count += 1
    found = known.likely[:count]
    found.sort()
    return found
