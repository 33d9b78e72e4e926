"""Whether one more forward of the draft model brings in enough to be worth its time."""

from __future__ import annotations

import numpy as np

from draftloop.runtime.compiling import compiled
from draftloop.runtime.records import Floats
from draftloop.tree import DraftBudget

MEMORY = 0.9
PRIOR_GAIN = 0.6
# A forward counts for at most so many times what they take, or this: one that waited behind a long
# prompt would end further ones for good, and with them all that could correct it.
MOST_SURPRISE, LEAST_S = 4.0, 1e-3
# Part of the way to the first guess that is gone with every forward that does not pay: they are
# tried again.
FADING = 0.005


@compiled
def observed(state: Floats, seconds: float, gain: float, first: bool) -> None:
    """`Economy.observe`, compiled."""
    if not first:
        most = MOST_SURPRISE * max(state[0], LEAST_S)
        state[0] += (1 - MEMORY) * (min(seconds, most) - state[0])
    state[1] += (1 - MEMORY) * (gain - state[1])


@compiled
def pays(state: Floats, reach: float, tokens_per_second: float, least: float) -> bool:
    """`Economy.pays`, compiled."""
    goes_on = reach * state[1] > tokens_per_second * state[0] + least
    if not goes_on:
        state[0] += FADING * (state[2] - state[0])
    return bool(goes_on)


class Economy:
    """What further forwards of a session's drafts cost and bring in, of late.

    `first_forward_s` is a first guess: seconds of one forward. `state`: those seconds, expected
    accepted tokens of a forward whose start is accepted, and the guess.
    """

    def __init__(self, first_forward_s: float) -> None:
        self.state = np.array((first_forward_s, PRIOR_GAIN, first_forward_s))

    def observe(self, seconds: float, gain: float, *, first: bool = False) -> None:
        """Takes in a forward, waiting included, and the expected tokens that it added.

        How long the `first` one of a draft took says nothing about a further one: where the target
        runs on the same machine it finds the caches full of the target's weights.
        """
        observed(self.state, seconds, gain, first)

    def pays(self, reach: float, budget: DraftBudget) -> bool:
        """Whether to run another forward behind a draft that is accepted whole with `reach`."""
        rate, least = budget.tokens_per_second, budget.least_path_probability
        return pays(self.state, reach, rate, least)
