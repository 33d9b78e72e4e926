"""Which of several ways to draft is taken, by what each has brought in."""

from __future__ import annotations

from enum import IntEnum

from draftloop.calibration import Calibration
from draftloop.pace import Pace

# Forwards of each way at first, then every so many one of the way that lost.
TRIALS, RETRY = 4, 16
# Drafts, of all sessions, of which one goes another way; and tokens that the drafts of a way must
# have brought in more than as many of the usual one. A few lucky ones do not decide.
RETRY_OF_ALL, CLEARLY = 32, 25.0
CHOICE_MEMORY, MOST_DRAFTS = 0.95, 100


class Turns:
    """Which of so many ways is taken next: each so many `trials` at first, and later the best one.

    Of the others one, in turn, every `retry` times.
    """

    def __init__(self, ways: int, retry: int, trials: int) -> None:
        self._ways, self._retry, self._trials = range(ways), retry, trials
        self._taken = 0

    def next(self, best: int) -> int:
        """The way, where `best` is the best one as far as is known."""
        taken, self._taken = self._taken, self._taken + 1
        if taken < self._trials * len(self._ways):
            return taken // self._trials
        turn, left = divmod(self._taken, self._retry)
        others = [way for way in self._ways if way != best]
        return best if left else others[turn % len(others)]


class TwoWays:
    """Which of two ways to draft adds more tokens a second: the first one or the other."""

    def __init__(self) -> None:
        self._first, self._other = Pace(CHOICE_MEMORY), Pace(CHOICE_MEMORY)
        self._turns = Turns(2, RETRY, TRIALS)

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
        self._turns = Turns(len(Way), RETRY_OF_ALL, trials=0)

    def next(self, usual: Way) -> Way:
        """The way of the next draft: the `usual` one, until another is clearly better."""

        def lead(way: Way) -> float:
            return self._drafts[way] * (self._worths[way] - self._worths[usual])

        best = max(Way, key=lead)
        return Way(self._turns.next(best if lead(best) > CLEARLY else usual))

    def observe(self, way: Way, worth: float) -> None:
        """Takes in what a draft is expected to bring in, in tokens, less what it cost."""
        self._drafts[way] = min(self._drafts[way] + 1, MOST_DRAFTS)
        share = 1 / self._drafts[way]
        self._worths[way] += share * (worth - self._worths[way])
