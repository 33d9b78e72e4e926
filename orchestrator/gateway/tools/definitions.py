"""What a JSON Schema refers to by `$ref`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

DEFINITION_KEYS = ("$defs", "definitions")  # what the parts of a schema may refer to


def resolve_reference(target: str, root: dict[str, Any]) -> Any:
    """What a `$ref` within the schema refers to; None if there is nothing."""
    place: Any = root
    for name in _steps(target):
        place = place.get(name) if isinstance(place, dict) else None
    return place


def needed_definitions(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The definitions of `root` that the schema refers to, also through one another."""
    needed: dict[str, dict[str, Any]] = {}
    unread: list[Any] = [schema]
    while unread:
        for target in _references(unread.pop()):
            key, name, *_ = [*_steps(target), "", ""]
            definitions = root.get(key) if key in DEFINITION_KEYS else None
            if not isinstance(definitions, dict) or name not in definitions:
                continue
            if name not in needed.setdefault(key, {}):
                needed[key][name] = definitions[name]
                unread.append(definitions[name])
    return needed


def _references(value: Any) -> Iterator[str]:
    """The targets of all `$ref` in a value."""
    unread = [value]
    while unread:
        value = unread.pop()
        if isinstance(value, dict):
            if isinstance(target := value.get("$ref"), str):
                yield target
            unread.extend(value.values())
        elif isinstance(value, list):
            unread.extend(value)


def _steps(target: str) -> list[str]:
    steps = target.removeprefix("#/").split("/")
    return [step.replace("~1", "/").replace("~0", "~") for step in steps]
