"""Whether one more forward of the draft model brings in enough to be worth its time."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from draftloop.calibration import Calibration
from draftloop.pace import Pace
from draftloop.runtime.compiling import compiled
from draftloop.runtime.records import Floats
from draftloop.tree import DraftBudget

MEMORY = 0.9
PRIOR_GAIN = 0.6
# Forwards or drafts of each way at first, then every so many one of a way that lost: of a session,
# and of all sessions.
TRIALS, RETRY, RETRY_OF_ALL = 4, 16, 64
CHOICE_MEMORY, WAYS_MEMORY = 0.95, 0.99


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


class Turns:
    """Which of so many ways is taken next: each is tried at first, and later the best one.

    The others are tried again now and then, in turn.
    """

    def __init__(self, ways: int, retry: int) -> None:
        self._ways, self._retry, self._taken = range(ways), retry, 0

    def next(self, best: int) -> int:
        """The way, where `best` is the best one as far as is known."""
        tried, self._taken = self._taken // TRIALS, self._taken + 1
        if tried in self._ways:
            return tried
        turn, left = divmod(self._taken, self._retry)
        others = [way for way in self._ways if way != best]
        return best if left else others[turn % len(others)]


class Choice:
    """Which of two ways to draft adds more tokens a second: the first one or the other."""

    def __init__(self) -> None:
        self._first, self._other = Pace(CHOICE_MEMORY), Pace(CHOICE_MEMORY)
        self._turns = Turns(2, RETRY)

    def takes_first(self) -> bool:
        """Whether the next forward is to go the first way."""
        return not self._turns.next(int(self._first.rate < self._other.rate))

    def observe(self, first: bool, tokens: int, seconds: float) -> None:
        """Takes in a forward that went one of the ways."""
        (self._first if first else self._other).observe(tokens, seconds)


class Way(IntEnum):
    """Who drafts where there is a smaller draft model."""

    BOTH = 0  # the smaller one, and the larger one reviews its draft and goes on
    LARGER = 1
    SMALLER = 2


class Ways:
    """Which way of drafting is worth most, of all sessions that share this.

    `further` calibrates the larger model's own guesses beside the smaller one's: what that has not
    guessed is right less often than what the larger model guesses alone.
    """

    def __init__(self) -> None:
        self.further = Calibration()
        self._worths, self._drafts = [0.0] * len(Way), [0] * len(Way)
        self._turns = Turns(len(Way), RETRY_OF_ALL)

    def next(self) -> Way:
        """The way of the next draft."""
        return Way(self._turns.next(max(Way, key=self._worths.__getitem__)))

    def observe(self, way: Way, worth: float) -> None:
        """Takes in what a draft is expected to bring in, in tokens, less what it cost."""
        self._drafts[way] += 1
        share = max(1 - WAYS_MEMORY, 1 / self._drafts[way])
        self._worths[way] += share * (worth - self._worths[way])
