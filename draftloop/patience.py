"""When to try again something that did not pay."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_WAIT_FACTOR = 16


@dataclass(slots=True)
class Patience:
    """Schedules tries: after `shortest` rounds, then after twice as many each time.

    The wait is at most `longest` rounds, and a success resets it. Expensive tries wait longer, up
    to `MAX_WAIT_FACTOR` times `longest`.
    """

    longest: int
    shortest: int = 1
    _wait: int = field(init=False)  # rounds between the last try and the next
    _rounds_waited: int = field(
        default=1, init=False
    )  # rounds since the last try, plus one if it paid
    _was_tried: bool = field(default=False, init=False)  # whether it was ever tried

    def __post_init__(self) -> None:
        self._wait = self.shortest

    def should_try(self, pays: bool, at_least: float = 0.0) -> bool:
        """Whether to do it now, because it pays or because a try is due; call it once per round.

        `at_least`: the minimum number of rounds between the last time and a try, given what a try
        costs now. It does not apply to the very first try, because the cost estimate may be wrong.
        """
        min_wait = min(at_least, MAX_WAIT_FACTOR * self.longest) if self._was_tried else 0.0
        self._rounds_waited += 1
        tries_now = pays or self._rounds_waited > max(self._wait, min_wait)
        if tries_now:
            self._wait = self.shortest if pays else min(2 * self._wait, self.longest)
            self._rounds_waited, self._was_tried = int(pays), True
        return tries_now
