"""Chooses between several ways to draft by what each has gained so far."""

from __future__ import annotations

from enum import IntEnum

from draftloop.calibration import Calibration
from draftloop.pace import Pace

# `Guessing`: drafts with and without guesses at first; then one in RETRY is of the worse kind.
TRIALS, RETRY = 4, 16
# `Ways`: one draft in RETRY_OF_ALL, over all sessions, goes another way. A way replaces the usual
# one when its drafts have gained CLEARLY tokens more than as many of the usual one would have, so
# that a few lucky drafts do not decide.
RETRY_OF_ALL, CLEARLY = 32, 25.0
CHOICE_MEMORY, MAX_DRAFTS = 0.95, 100


class Turns:
    """Schedules `ways` alternatives: `trials` times each at first, then the best one.

    Every `retry`-th time one of the others is taken, in turn.
    """

    def __init__(self, ways: int, retry: int, trials: int) -> None:
        self._ways, self._retry, self._trials = range(ways), retry, trials
        self._taken = 0

    def next(self, best: int) -> int:
        """Index of the way to take now; `best` is the best one as far as is known."""
        taken, self._taken = self._taken, self._taken + 1
        if taken < self._trials * len(self._ways):
            return taken // self._trials
        turn, left = divmod(self._taken, self._retry)
        others = [way for way in self._ways if way != best]
        return best if left else others[turn % len(others)]


class Guessing:
    """Whether the draft model drafts more tokens per second with guesses or without."""

    def __init__(self) -> None:
        self._with_guesses, self._without = Pace(CHOICE_MEMORY), Pace(CHOICE_MEMORY)
        self._turns = Turns(2, RETRY, TRIALS)

    def should_guess(self) -> bool:
        """Whether the next draft's forwards are to check guesses; to be called once per draft."""
        return not self._turns.next(int(self._with_guesses.rate < self._without.rate))

    def observe(self, guessed: bool, tokens: int, seconds: float) -> None:
        """Records the tokens and seconds of a draft with or without guesses."""
        (self._with_guesses if guessed else self._without).observe(tokens, seconds)


class Way(IntEnum):
    """Which models draft if there is a smaller draft model."""

    BOTH = 0  # the smaller one drafts, the larger one reviews and extends its draft
    LARGER = 1
    SMALLER = 2


class Ways:
    """Chooses the way of drafting that gains most, over all sessions that share this object.

    `further` calibrates the nodes that the larger model adds to a smaller one's draft. They are
    accepted less often than those that it drafts alone, as the smaller one did not propose them.
    """

    def __init__(self) -> None:
        self.further = Calibration()
        self._worths, self._drafts = [0.0] * len(Way), [0] * len(Way)
        self._turns = Turns(len(Way), RETRY_OF_ALL, trials=0)

    def next(self, usual: Way) -> Way:
        """The way of the next draft: the `usual` one unless another is clearly better."""

        def lead(way: Way) -> float:
            return self._drafts[way] * (self._worths[way] - self._worths[usual])

        best = max(Way, key=lead)
        return Way(self._turns.next(best if lead(best) > CLEARLY else usual))

    def observe(self, way: Way, worth: float) -> None:
        """Records a draft's worth: its expected gain less its cost, both in tokens."""
        self._drafts[way] = min(self._drafts[way] + 1, MAX_DRAFTS)
        share = 1 / self._drafts[way]
        self._worths[way] += share * (worth - self._worths[way])
