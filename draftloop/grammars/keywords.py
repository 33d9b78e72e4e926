"""Keywords of JSON Schema, and where a schema contains other schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

# OF_VALUES: keywords whose values are not schemas. OF_NAMES: keywords whose values map names, which
# are not keywords, to schemas.
OF_VALUES = {"const", "enum", "default", "examples"}
OF_NAMES = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}


def map_subschemas(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The schema, with `change` applied to everything that may be a schema or a list of them."""
    return {keyword: _map_keyword(keyword, value, change) for keyword, value in schema.items()}


def _map_keyword(keyword: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """The value of one keyword, with `change` applied to the schemas in it."""
    if keyword in OF_VALUES:
        return value
    if keyword in OF_NAMES and isinstance(value, dict):
        return {name: change(schema) for name, schema in value.items()}
    return change(value)


def subschemas(schema: dict[str, Any]) -> Iterator[Any]:
    """Everything in `schema` that may be a schema or a list of schemas."""
    for keyword, value in schema.items():
        if keyword in OF_NAMES and isinstance(value, dict):
            yield from value.values()
        elif keyword not in OF_VALUES:
            yield value
