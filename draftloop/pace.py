"""How fast tokens come of late."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """Tokens and time of the latest pieces of work of one kind; older ones fade by `memory`.

    The unit of time is the caller's: nanoseconds of rounds, seconds of forwards; `rate` follows it.
    """

    memory: float
    _tokens: float = 0.0
    _time: float = 0.0
    _rounds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per unit of the times observed; 0 before the first."""
        return self._tokens / self._time if self._time else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Tokens that a piece of work brings; 0 before the first."""
        return self._tokens / self._rounds if self._rounds else 0.0

    @property
    def time_per_round(self) -> float:
        """Time that a piece of work takes; 0 before the first."""
        return self._time / self._rounds if self._rounds else 0.0

    def after(self, tokens: float, time: float) -> float:
        """The rate where so much is assumed besides what was observed; 0 where that is nothing."""
        time += self._time
        return (self._tokens + tokens) / time if time else 0.0

    def observe(self, tokens: int, time: float) -> None:
        """Counts in a piece of work."""
        self.fade()
        self._tokens += tokens
        self._time += time
        self._rounds += 1

    def fade(self) -> None:
        """What was observed counts less: as much work of other kinds was done since."""
        self._tokens *= self.memory
        self._time *= self.memory
        self._rounds *= self.memory
