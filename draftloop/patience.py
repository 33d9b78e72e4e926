"""When to try again what did not pay."""

from __future__ import annotations

from dataclasses import dataclass, field

DEAREST = 16


@dataclass(slots=True)
class Patience:
    """Tries every `shortest` rounds, then with twice as many between two tries, at most `longest`.

    What pays starts it anew. Dear tries wait longer, up to `DEAREST` times `longest`.
    """

    longest: int
    shortest: int = 1
    _wait: int = field(init=False)  # rounds between the last try and the next
    _gone: int = field(default=1, init=False)  # of them, and one more after what paid
    _done: bool = field(default=False, init=False)  # whether it was ever done

    def __post_init__(self) -> None:
        self._wait = self.shortest

    def takes(self, pays: bool, at_least: float = 0.0) -> bool:
        """Whether to do now what pays, or does not and is due; to be asked once a round.

        `at_least`: rounds that lie between the last time and a try at the price it has now. The
        very first try does not ask for its price: that may be mistaken.
        """
        least = min(at_least, DEAREST * self.longest) if self._done else 0.0
        self._gone += 1
        takes = pays or self._gone > max(self._wait, least)
        if takes:
            self._wait = self.shortest if pays else min(2 * self._wait, self.longest)
            self._gone, self._done = int(pays), True
        return takes
