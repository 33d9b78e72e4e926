"""Whether to wait for sessions that are about to ask, so that one forward serves them too.

Sessions come back a few milliseconds after their answer. An engine that begins as soon as one of
them waits runs a forward for it alone, and the others wait for the next: half of the sessions in
every forward, where reading the weights is most of its time. So a forward waits for as many of the
absent as make the answers a second most, by the cost curve and by when they are due; where rows
cost what they cost together or apart, for none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from draftloop.cost_line import CostLine

# Of how long a session stays away: the share of what was known before.
MEMORY = 0.75
# Somebody away for longer does something else: it is not waited for before it has come back again.
LONGEST_ABSENCE_NS = 50_000_000
# Of the first absence that is known.
FIRST_DEVIATION = 0.375
# So much more must waiting bring, in answers a second.
CLEARLY_MORE = 1.1
# Decisions after which the cost curve, which changes slowly, is read again.
REREAD = 256


@dataclass(slots=True)
class _Party:
    """A session between its answer and its next question: how long it stays away, and its rows."""

    rows: int = 1
    left_ns: int = 0
    known: bool = False
    absence_ns: float = 0.0
    deviation_ns: float = 0.0

    @property
    def due_ns(self) -> float:
        """By when it is most likely back."""
        return self.left_ns + self.absence_ns + self.deviation_ns

    def returned(self, now: int) -> None:
        """Takes in its return."""
        absence = now - self.left_ns
        if absence > LONGEST_ABSENCE_NS:
            self.known = False
            return
        if not self.known:
            self.known = True
            self.absence_ns, self.deviation_ns = absence, FIRST_DEVIATION * absence
            return
        surprise = absence - self.absence_ns
        self.absence_ns += (1 - MEMORY) * surprise
        self.deviation_ns += (1 - MEMORY) * (abs(surprise) - self.deviation_ns)


class Gathering:
    """Knows who is away; used from its engine's thread. Times are those of `perf_counter_ns`."""

    def __init__(self, read_costs: Callable[[], CostLine]) -> None:
        self._read_costs = read_costs
        self._costs: CostLine | None = None
        self._decisions = 0
        self._parties: dict[Hashable, _Party] = {}
        self._away: dict[Hashable, _Party] = {}  # between an answer and their next question

    @property
    def anybody_away(self) -> bool:
        """Whether there is somebody to wait for at all."""
        return bool(self._away)

    def asked(self, party: Hashable, rows: int, now: int) -> None:
        """Takes in that somebody waits for a forward with so many rows."""
        if party not in self._parties:
            self._parties[party] = _Party()
        known = self._parties[party]
        if self._away.pop(party, None) is not None:
            known.returned(now)
        known.rows = rows

    def answered(self, party: Hashable, now: int) -> None:
        """Takes in that it got its answer, and will ask again."""
        known = self._parties.get(party)
        if known is not None:
            known.left_ns = now
            self._away[party] = known

    def forget(self) -> None:
        """Takes in that nobody who was there so far will ask again."""
        self._parties.clear()
        self._away.clear()

    def gone(self, party: Hashable) -> None:
        """Takes in that it will not ask again."""
        self._parties.pop(party, None)
        self._away.pop(party, None)

    def patience_ns(
        self, waiting: int, rows: int, now: int, besides: Hashable | None = None
    ) -> float:
        """How long to wait for others; `waiting` sessions do so for a forward of `rows`.

        0 where more answers a second come from beginning at once. `besides`: is back, though its
        question has no rows yet.
        """
        due = sorted(
            (known.due_ns, known.rows)
            for party, known in self._away.items()
            if party != besides and known.known and known.due_ns > now
        )
        if not due or not waiting:
            return 0.0
        costs = self._line()
        best, patience = CLEARLY_MORE * waiting / costs.nanoseconds(rows), 0.0
        for count, (moment, more) in enumerate(due, start=waiting + 1):
            rows += more
            rate = count / (moment - now + costs.nanoseconds(rows))
            if rate > best:
                best, patience = rate, moment - now
        return patience

    def _line(self) -> CostLine:
        if self._costs is None or self._decisions % REREAD == 0:
            self._costs = self._read_costs()
        self._decisions += 1
        return self._costs
