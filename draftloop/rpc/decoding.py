"""Bytes that are no message: the client's mistake, told as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from draftloop.errors import InvalidInput

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a message that could not be decoded until somebody reads it."""

    size: int


def lenient(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Yields `Unreadable` where `deserialize` raises, which would leave gRPC as INTERNAL."""

    def deserialized(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return Unreadable(len(data))

    return deserialized


def readable(message: Message) -> Message:
    """The message. Raises InvalidInput where there is none."""
    if isinstance(message, Unreadable):
        rule = "must be a protobuf message of the method's request type"
        raise InvalidInput("request", rule, f"{message.size} other bytes")
    return message
