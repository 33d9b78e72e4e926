"""Top-k, top-p and min-p: which tokens are left to choose from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from draftloop.request import SamplingParameters
from draftloop.runtime.choices import EXCLUDED
from draftloop.runtime.compiling import compiled

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.int32]
# Probabilities are of one size whose exponent and first three bits are the same.
BITS_BELOW = 20
SIZES = (0x3F800000 >> BITS_BELOW) + 1


def filtered(logits: Tensor, parameters: SamplingParameters) -> Tensor:
    """Sets to -inf what the three cut off, one after the other; the likeliest token always stays.

    logits: float32 [rows, vocabulary], the temperature in them already.
    """
    vocabulary = logits.shape[-1]
    if 0 < parameters.top_k < vocabulary:
        least = logits.topk(parameters.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, EXCLUDED)
    if parameters.top_p < 1:
        logits = _within(logits, parameters.top_p)
    if parameters.min_p > 0:
        probabilities = logits.softmax(dim=-1)
        least = probabilities.amax(dim=-1, keepdim=True) * parameters.min_p
        logits = logits.masked_fill(probabilities < least, EXCLUDED)
    return logits


def _within(logits: Tensor, top_p: float) -> Tensor:
    """The likeliest tokens, up to `top_p` in all; of equally likely ones the lower ids stay."""
    probabilities = logits.softmax(dim=-1)
    if logits.is_cpu:
        logits = logits.clone()
        known = probabilities.numpy()
        cut_off(logits.numpy(), known, known.view(np.int32), top_p, EXCLUDED)
        return logits
    return logits.masked_fill(_outside(probabilities, top_p), EXCLUDED)


def _outside(probabilities: Tensor, top_p: float) -> Tensor:
    """Where the tokens are that the others leave no room for."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    surplus = ordered.cumsum(dim=-1) - ordered >= top_p
    surplus[..., 0] = False
    return surplus.scatter(-1, order, surplus)


@compiled
def cut_off(
    logits: Floats, probabilities: Floats, bits: Words, top_p: float, excluded: float
) -> None:
    """The same in place: `excluded` is written where none stays. `bits` of the probabilities.

    Sorts no more than the tokens of one size, where the likelier ones leave room for a part.
    """
    rows, vocabulary = probabilities.shape
    floor = (1 - top_p) / (2 * vocabulary)  # all tokens below it are less than half of what goes
    likely = np.empty(vocabulary, np.float32)
    for row in range(rows):
        masses = np.zeros(SIZES)
        for token in range(vocabulary):
            if probabilities[row, token] > floor:
                masses[bits[row, token] >> BITS_BELOW] += probabilities[row, token]
        size, total = SIZES - 1, 0.0
        while total + masses[size] < top_p and size:
            total += masses[size]
            size -= 1
        count = 0
        for token in range(vocabulary):
            if bits[row, token] >> BITS_BELOW == size:
                likely[count] = probabilities[row, token]
                count += 1
        likely[:count].sort()
        least, equal = np.float32(0), 0  # where roundings leave too little for `top_p`: all stay
        while count and (total < top_p or not equal):
            count -= 1
            equal = equal + 1 if likely[count] == least else 1
            least = likely[count]
            total += least
        for token in range(vocabulary):
            if probabilities[row, token] == least and equal:
                equal -= 1
            elif probabilities[row, token] <= least and least:
                logits[row, token] = excluded
