"""Uncertainty of a ratio of summed times: a bootstrap over prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftloop.runtime.records import Floats

DRAWINGS = 1000


def ratio_within(
    upper: Floats, lower: Floats, prompts: Sequence[object]
) -> tuple[float, float, float]:
    """The ratio of the sums, and its middle nine tenths over bootstrap samples of the prompts.

    A bootstrap sample draws as many prompts, with replacement.
    """
    above, below = (by_prompt(times, prompts) for times in (upper, lower))
    drawn = np.random.default_rng(0).integers(len(below), size=(DRAWINGS, len(below)))
    ratios = above[drawn].sum(axis=1) / below[drawn].sum(axis=1)
    least, most = np.quantile(ratios, (0.05, 0.95))
    return float(upper.sum() / lower.sum()), float(least), float(most)


def by_prompt(times: Floats, prompts: Sequence[object]) -> Floats:
    """Sums of each prompt's repetitions, [..., prompts].

    Repetitions of a prompt are similar, and greedy ones are the same text, so they carry less
    information than as many different prompts.
    """
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    summed = np.zeros((*times.shape[:-1], len(numbers)))
    for place, prompt in enumerate(prompts):
        summed[..., numbers[prompt]] += times[..., place]
    return summed
