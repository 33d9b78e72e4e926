"""When to try again what did not pay."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Patience:
    """Tries after `shortest` rounds, then after twice as many each time, at most `longest`."""

    longest: int
    shortest: int = 1
    _wait: int = field(init=False)
    _left: int = field(init=False)

    def __post_init__(self) -> None:
        self._wait, self._left = self.shortest, self.shortest - 1

    def due(self) -> bool:
        """Whether this round is one to try it; to be asked once a round."""
        self._left -= 1
        return self._left < 0

    def paid(self, did: bool, at_least: float = 0.0) -> None:
        """Takes in whether a try paid; `at_least`: rounds until the next one if it did not."""
        self._wait = self.shortest if did else int(min(max(2 * self._wait, at_least), self.longest))
        self._left = self.shortest - 1 if did else self._wait

    def takes(self, pays: bool, at_least: float = 0.0) -> bool:
        """Whether to do now what pays, or does not and is due to be tried."""
        due = self.due()
        if pays or due:
            self.paid(pays, at_least)
        return pays or due
