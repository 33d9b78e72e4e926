"""Helpers for dataclasses and messages whose fields have the same names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sized
from typing import Any

from draftloop.errors import InvalidInput


def field_names(kind: type[Any], *, exclude: Iterable[str] = ()) -> tuple[str, ...]:
    """Names of a dataclass's fields, except those in `exclude`."""
    excluded = set(exclude)
    return tuple(name.name for name in dataclasses.fields(kind) if name.name not in excluded)


def field_values(source: object, fields: Iterable[str]) -> dict[str, Any]:
    """Values of an object's fields by name; too slow only for what every round carries."""
    return {name: getattr(source, name) for name in fields}


def require_max_entries(field_name: str, parts: Sized, max_entries: int) -> None:
    """Raises InvalidInput if a repeated field has more entries than any rule allows.

    Call it before reading them: entries of two bytes each could block the event loop for seconds.
    """
    if len(parts) > max_entries:
        raise InvalidInput(
            field_name, f"must have at most {max_entries} entries", f"{len(parts)} entries"
        )
