"""Reports requests that are not valid protobuf messages as the client's mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from draftloop.errors import InvalidInput

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Placeholder for a message that could not be decoded, until it is read."""

    size: int


def lenient(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Wraps `deserialize`: where it raises, returns `Unreadable` (gRPC would send INTERNAL)."""

    def deserialized(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return Unreadable(len(data))

    return deserialized


def readable(message: Message) -> Message:
    """The message itself. Raises InvalidInput if it could not be decoded."""
    if isinstance(message, Unreadable):
        rule = "must be a protobuf message of the method's request type"
        raise InvalidInput("request", rule, f"{message.size} other bytes")
    return message
