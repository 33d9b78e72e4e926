"""How busy a service says it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLoad:
    """Sessions with and without a slot, what a message has taken of late, in nanoseconds, and how
    many forwards were run so far.
    """

    running_sessions: int = 0
    waiting_sessions: int = 0
    answer_ns: int = 0
    forwards: int = 0

    @property
    def sessions(self) -> int:
        """All sessions, served or not."""
        return self.running_sessions + self.waiting_sessions
