"""Recent rate of tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """Tokens and time of recent pieces of work of one kind; older ones fade by `memory`.

    The caller chooses the unit of time, such as nanoseconds or seconds; `rate` is per that unit.
    """

    memory: float
    _tokens: float = 0.0
    _time: float = 0.0
    _rounds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per unit of the observed times; 0 before the first observation."""
        return self._tokens / self._time if self._time else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Tokens per piece of work; 0 before the first."""
        return self._tokens / self._rounds if self._rounds else 0.0

    @property
    def time_per_round(self) -> float:
        """Time per piece of work; 0 before the first."""
        return self._time / self._rounds if self._rounds else 0.0

    def rate_with(self, tokens: float, time: float) -> float:
        """The rate with these tokens and this time added to what was observed; 0 without time."""
        time += self._time
        return (self._tokens + tokens) / time if time else 0.0

    def observe(self, tokens: int, time: float) -> None:
        """Counts one piece of work."""
        self.fade()
        self._tokens += tokens
        self._time += time
        self._rounds += 1

    def fade(self) -> None:
        """Gives earlier observations less weight; called for work of other kinds too."""
        self._tokens *= self.memory
        self._time *= self.memory
        self._rounds *= self.memory
