"""Micro-batching: decides whether a forward waits for sessions that are about to ask.

Sessions ask again a few milliseconds after their answer. An engine that starts as soon as one of
them asks runs a forward for it alone while the others wait for the next one. So every forward
serves only half of the sessions, although most of its time goes into reading the weights. A forward
therefore waits for as many absent sessions as maximize the answers per second, given the cost curve
and the times at which the sessions are expected. If rows cost the same together as apart, it waits
for none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from draftloop.cost_line import CostLine

# Weight of the past in the running means of a session's absence.
MEMORY = 0.75
# A session that was away for longer was doing something else: no forward waits for it until its
# absence has been measured again.
MAX_ABSENCE_NS = 50_000_000
# Initial deviation, as a share of the first measured absence.
FIRST_DEVIATION = 0.375
# Waiting must increase the answers per second by this factor.
CLEARLY_MORE = 1.1
# The cost curve changes slowly, so it is read again only after this many decisions.
REREAD = 256


@dataclass(slots=True)
class _SessionPace:
    """A session: how long it usually stays away between answer and next request, and its rows."""

    rows: int = 1
    left_ns: int = 0
    known: bool = False
    absence_ns: float = 0.0
    deviation_ns: float = 0.0

    @property
    def due_ns(self) -> float:
        """Time by which it is most likely back."""
        return self.left_ns + self.absence_ns + self.deviation_ns

    def returned(self, now: int) -> None:
        """Updates the means when the session asks again."""
        absence = now - self.left_ns
        if absence > MAX_ABSENCE_NS:
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
    """Tracks absent sessions; used on its engine's thread. Times are those of `perf_counter_ns`."""

    def __init__(self, read_costs: Callable[[], CostLine]) -> None:
        self._read_costs = read_costs
        self._costs: CostLine | None = None
        self._decisions = 0
        self._sessions: dict[Hashable, _SessionPace] = {}
        self._absent: dict[Hashable, _SessionPace] = {}  # between an answer and the next request

    @property
    def has_absent(self) -> bool:
        """Whether there is any session to wait for."""
        return bool(self._absent)

    def record_request(self, session: Hashable, rows: int, now: int) -> None:
        """Records that a session waits for a forward with `rows` rows."""
        if session not in self._sessions:
            self._sessions[session] = _SessionPace()
        known = self._sessions[session]
        if self._absent.pop(session, None) is not None:
            known.returned(now)
        known.rows = rows

    def record_answer(self, session: Hashable, now: int) -> None:
        """Records that a session got its answer and will ask again."""
        known = self._sessions.get(session)
        if known is not None:
            known.left_ns = now
            self._absent[session] = known

    def forget(self) -> None:
        """Forgets all sessions: none of them will ask again."""
        self._sessions.clear()
        self._absent.clear()

    def remove(self, session: Hashable) -> None:
        """Forgets a session that will not ask again."""
        self._sessions.pop(session, None)
        self._absent.pop(session, None)

    def wait_ns(
        self, waiting: int, rows: int, now: int, excluding: Hashable | None = None
    ) -> float:
        """How long to wait for absent sessions; `waiting` ones need a forward of `rows` so far.

        Returns 0 if starting at once gives more answers per second. `excluding`: a session that is
        already back although its forward is not known yet.
        """
        due = sorted(
            (known.due_ns, known.rows)
            for session, known in self._absent.items()
            if session != excluding and known.known and known.due_ns > now
        )
        if not due or not waiting:
            return 0.0
        costs = self._line()
        best, wait = CLEARLY_MORE * waiting / costs.nanoseconds(rows), 0.0
        for count, (moment, more) in enumerate(due, start=waiting + 1):
            rows += more
            rate = count / (moment - now + costs.nanoseconds(rows))
            if rate > best:
                best, wait = rate, moment - now
        return wait

    def _line(self) -> CostLine:
        if self._costs is None or self._decisions % REREAD == 0:
            self._costs = self._read_costs()
        self._decisions += 1
        return self._costs
