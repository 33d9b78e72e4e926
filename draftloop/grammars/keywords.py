"""Keywords of JSON Schema, by where the schemas within a schema are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

# Those whose values are no schemas, and those whose values have schemas by names of their own.
OF_VALUES = {"const", "enum", "default", "examples"}
OF_NAMES = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}


def changed(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The same with what `change` makes of everything that may be a schema, or a list of them."""
    return {keyword: _part(keyword, said, change) for keyword, said in schema.items()}


def _part(keyword: str, said: Any, change: Callable[[Any], Any]) -> Any:
    """What a keyword says: values, schemas by names that are no keywords, or schemas."""
    if keyword in OF_VALUES:
        return said
    if keyword in OF_NAMES and isinstance(said, dict):
        return {name: change(schema) for name, schema in said.items()}
    return change(said)


def inner(schema: dict[str, Any]) -> Iterator[Any]:
    """Everything in it that may be a schema, or a list of them."""
    for keyword, said in schema.items():
        if keyword in OF_NAMES and isinstance(said, dict):
            yield from said.values()
        elif keyword not in OF_VALUES:
            yield said
