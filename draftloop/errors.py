"""The exception tree. Only `rpc/interceptors.py` translates it into gRPC statuses."""

from __future__ import annotations

from typing import Any, Self

SHOWN_VALUE_LENGTH = 80
SHOWN_LENGTH = 1500  # of a description; for gRPC, `rpc/interceptors.py` may shorten it further


def shortened(text: str, max_letters: int) -> str:
    """The text; if it is longer than `max_letters` characters, its beginning and an ellipsis."""
    return text if len(text) <= max_letters else text[:max_letters] + "…"


class DraftloopError(Exception):
    """Base of all errors that Draftloop raises on purpose; their text is meant for the user."""


class InvalidInput(DraftloopError):
    """Invalid user input; names the field, the rule with its limit, and the value given."""

    def __init__(self, field: str, rule: str, value: Any) -> None:
        self._describe(field, f"{rule}; got {shortened(repr(value), SHOWN_VALUE_LENGTH)}")

    @classmethod
    def from_description(cls, field: str, description: str) -> Self:
        """An error with another component's description of the mistake, unchanged."""
        error = cls.__new__(cls)
        error._describe(field, description)
        return error

    def _describe(self, field: str, description: str) -> None:
        self.field = field
        self.description = shortened(description, SHOWN_LENGTH)
        DraftloopError.__init__(self, f"{field}: {self.description}")


class Overloaded(DraftloopError):
    """The bounded queue is full; the caller may try again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(f"{message}; try again in {retry_after_s:g} s")


class Unauthenticated(DraftloopError):
    """The caller sent no API key, or one that is not known."""


class Forbidden(DraftloopError):
    """The caller is known but may not do this."""


class Unavailable(DraftloopError):
    """A required component is unreachable or not ready."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class DeadlineExceeded(DraftloopError):
    """The client's time limit has passed; nobody waits for an answer any more."""

    def __init__(self) -> None:
        super().__init__("the request's deadline has passed")


class StaleSession(DraftloopError):
    """The message assumes a committed length that is not the session's."""

    def __init__(self, *, assumed: int, actual: int) -> None:
        self.actual = actual
        super().__init__(f"committed_length: must be {actual}, the session's; got {assumed}")


class SessionLost(DraftloopError):
    """The session no longer exists; reopen it from the committed tokens."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the session is gone: {reason}; reopen it from the committed tokens")


class Mismatch(DraftloopError):
    """Two services are incompatible, for instance in vocabulary, model or protocol version."""


class AnswerTooLarge(DraftloopError):
    """The answer does not fit into a message; trying again would not help."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__(f"answer: must have at most {most} bytes; got {size}")


class StartupFailure(DraftloopError):
    """A service cannot start; the text says what is missing and what to do."""
