"""The exception tree. `rpc/interceptors.py` alone turns it into gRPC statuses."""

from __future__ import annotations

from typing import Any, Self

SHOWN_VALUE_LENGTH = 80
SHOWN_LENGTH = 1500  # of a description; a gRPC status may hold less: `rpc/interceptors.py`


def shortened(text: str, most: int) -> str:
    """The text, or so many letters of it and a sign that there are more."""
    return text if len(text) <= most else text[:most] + "…"


class DraftloopError(Exception):
    """Base of everything that Draftloop raises on purpose; the text is for the user."""


class InvalidInput(DraftloopError):
    """A user's mistake: names the field, the rule with its limit, and the value given."""

    def __init__(self, field: str, rule: str, value: Any) -> None:
        self._describe(field, f"{rule}; got {shortened(repr(value), SHOWN_VALUE_LENGTH)}")

    @classmethod
    def passed_on(cls, field: str, description: str) -> Self:
        """Another service's word on the mistake, as it came."""
        error = cls.__new__(cls)
        error._describe(field, description)
        return error

    def _describe(self, field: str, description: str) -> None:
        self.field = field
        self.description = shortened(description, SHOWN_LENGTH)
        DraftloopError.__init__(self, f"{field}: {self.description}")


class Overloaded(DraftloopError):
    """The bounded queue is full; worth trying again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(f"{message}; try again in {retry_after_s:g} s")


class Unauthenticated(DraftloopError):
    """Nobody knows who calls: no API key came, or one that is not known."""


class Forbidden(DraftloopError):
    """Who calls is known, and may not do this."""


class Unavailable(DraftloopError):
    """A part that the request cannot do without is not reachable or not ready."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class DeadlineExceeded(DraftloopError):
    """The time that the client gave has passed; nobody waits for an answer any more."""

    def __init__(self) -> None:
        super().__init__("the request's deadline has passed")


class StaleSession(DraftloopError):
    """The message assumes another committed length than the session has."""

    def __init__(self, *, assumed: int, actual: int) -> None:
        self.actual = actual
        super().__init__(f"committed_length: must be {actual}, the session's; got {assumed}")


class SessionLost(DraftloopError):
    """The session does not exist any more; reopen it from the committed tokens."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the session is gone: {reason}; reopen it from the committed tokens")


class Mismatch(DraftloopError):
    """Two services do not fit together: other vocabularies or protocol versions."""


class AnswerTooLarge(DraftloopError):
    """What was asked for does not fit a message, and would not the next time either."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__(f"answer: must have at most {most} bytes; got {size}")


class StartupFailure(DraftloopError):
    """A service cannot start; the text says what is missing and what to do."""
