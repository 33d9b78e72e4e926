"""Dataclasses and messages whose fields have the same names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sized
from typing import Any

from draftloop.errors import InvalidInput


def names(kind: type[Any], *, but: Iterable[str] = ()) -> tuple[str, ...]:
    """Those of a dataclass's fields, but for some."""
    left_out = set(but)
    return tuple(name.name for name in dataclasses.fields(kind) if name.name not in left_out)


def taken(source: object, fields: Iterable[str]) -> dict[str, Any]:
    """What an object has in these fields; quick enough for what is not said every round."""
    return {name: getattr(source, name) for name in fields}


def require_few(field_name: str, parts: Sized, most: int) -> None:
    """Raises InvalidInput where a message holds more parts than any rule allows.

    Before they are read: two bytes each, they would keep the event loop for seconds.
    """
    if len(parts) > most:
        raise InvalidInput(field_name, f"must have at most {most} entries", f"{len(parts)} entries")
