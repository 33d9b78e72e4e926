"""When to try again something that did not pay."""

from __future__ import annotations

from dataclasses import dataclass, field

DEAREST = 16


@dataclass(slots=True)
class Patience:
    """Schedules tries: after `shortest` rounds, then after twice as many each time.

    The wait is at most `longest` rounds, and a success resets it. Expensive tries wait longer, up
    to `DEAREST` times `longest`.
    """

    longest: int
    shortest: int = 1
    _wait: int = field(init=False)  # rounds between the last try and the next
    _gone: int = field(default=1, init=False)  # rounds since the last try, plus one if it paid
    _done: bool = field(default=False, init=False)  # whether it was ever tried

    def __post_init__(self) -> None:
        self._wait = self.shortest

    def should_try(self, pays: bool, at_least: float = 0.0) -> bool:
        """Whether to do it now, because it pays or because a try is due; call it once per round.

        `at_least`: the minimum number of rounds between the last time and a try, given what a try
        costs now. It does not apply to the very first try, because the cost estimate may be wrong.
        """
        least = min(at_least, DEAREST * self.longest) if self._done else 0.0
        self._gone += 1
        takes = pays or self._gone > max(self._wait, least)
        if takes:
            self._wait = self.shortest if pays else min(2 * self._wait, self.longest)
            self._gone, self._done = int(pays), True
        return takes
