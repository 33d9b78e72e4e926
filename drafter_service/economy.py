"""Whether one more forward of the draft model brings in enough to be worth its time."""

from __future__ import annotations

import numpy as np

from draftloop.pace import Pace
from draftloop.runtime.compiling import compiled
from draftloop.runtime.records import Floats
from draftloop.tree import DraftBudget

MEMORY = 0.9
PRIOR_GAIN = 0.6
# Forwards of each way at first, then every so many one of the way that lost.
TRIALS, RETRY = 4, 16
CHOICE_MEMORY = 0.95


@compiled
def observed(state: Floats, seconds: float, gain: float, first: bool) -> None:
    """`Economy.observe`, compiled; `state`: seconds and gain of a further forward."""
    if not first:
        state[0] += (1 - MEMORY) * (seconds - state[0])
    state[1] += (1 - MEMORY) * (gain - state[1])


@compiled
def pays(state: Floats, reach: float, tokens_per_second: float, least: float) -> bool:
    """`Economy.pays`, compiled."""
    return bool(reach * state[1] > tokens_per_second * state[0] + least)


class Economy:
    """What further forwards of a session's drafts cost and bring in, of late.

    `first_forward_s` is a first guess: seconds of one forward. `state`: those seconds, and expected
    accepted tokens of a forward whose start is accepted.
    """

    def __init__(self, first_forward_s: float) -> None:
        self.state = np.array((first_forward_s, PRIOR_GAIN))

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


class Choice:
    """Which of two ways to draft adds more tokens a second: the first one or the other.

    Each is tried at first, and the one that lost again now and then.
    """

    def __init__(self) -> None:
        self._first, self._other = Pace(CHOICE_MEMORY), Pace(CHOICE_MEMORY)
        self._taken = 0

    def takes_first(self) -> bool:
        """Whether the next forward is to go the first way."""
        self._taken += 1
        if self._taken <= 2 * TRIALS:
            return self._taken <= TRIALS
        better = self._first.rate >= self._other.rate
        return better if self._taken % RETRY else not better

    def observe(self, first: bool, tokens: int, seconds: float) -> None:
        """Takes in a forward that went one of the ways."""
        (self._first if first else self._other).observe(tokens, seconds)
