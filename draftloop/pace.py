"""How fast tokens come of late."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """Tokens and time of the latest pieces of work of one kind; older ones fade by `memory`."""

    memory: float
    rounds: int = 0
    _tokens: float = 0.0
    _time: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per unit of the times observed; 0 before the first."""
        return self._tokens / self._time if self._time else 0.0

    def after(self, tokens: float, time: float) -> float:
        """The rate where so much is assumed besides what was observed."""
        return (self._tokens + tokens) / (self._time + time)

    def observe(self, tokens: int, time: float) -> None:
        """Counts in a piece of work."""
        self.rounds += 1
        self._tokens = self.memory * self._tokens + tokens
        self._time = self.memory * self._time + time
