"""The context of a gRPC call to a servicer that a test calls directly."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FakeContext:
    """What the client sent beside its request: an API key, and the seconds that it waits."""

    key: str | None = None
    seconds: float | None = None

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """The call's headers."""
        return [("authorization", f"Bearer {self.key}")] if self.key is not None else []

    def time_remaining(self) -> float | None:
        """Seconds until the deadline; None without one."""
        return self.seconds
