"""How busy a service is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLoad:
    """Load as a service reports it.

    Sessions with and without a slot, the recent time per message in nanoseconds, and the number of
    forwards since the start.
    """

    running_sessions: int = 0
    waiting_sessions: int = 0
    answer_ns: int = 0
    forwards: int = 0

    @property
    def sessions(self) -> int:
        """All sessions, with or without a slot."""
        return self.running_sessions + self.waiting_sessions
