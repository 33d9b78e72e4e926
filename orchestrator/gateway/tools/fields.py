"""A function's arguments one by one, for notations that do not write them as one JSON object."""

from __future__ import annotations

from typing import Any, NamedTuple

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.schemas import Function

DEFINITION_KEYS = ("$defs", "definitions")  # what the parts of a schema may refer to
# Keys of a schema of arguments that add no rule to the arguments' own schemas.
PLAIN_KEYS = {
    "type", "properties", "required", "additionalProperties", *DEFINITION_KEYS, "title",
    "description", "default", "examples", "$schema", "$id", "$comment", "strict",
}  # fmt: skip
KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array",
         dict: "object", type(None): "null"}  # fmt: skip
CHOICE_KEYS = ("anyOf", "oneOf", "allOf")
MAX_REFERENCES = 16  # most references to follow from one schema to another


class Field(NamedTuple):
    """One argument. `schema` is self-contained: it includes the definitions that it refers to."""

    name: str
    schema: dict[str, Any]
    required: bool


def fields_of(function: Function) -> list[Field]:
    """All arguments, in the order of the function's schema.

    Raises InvalidInput if that schema has rules beyond those of its properties.
    """
    schema = function.schema_of_arguments
    more = sorted(schema.keys() - PLAIN_KEYS)
    if schema["type"] != "object" or more:
        rule = "must have parameters of plain properties, as this model writes calls"
        raise InvalidInput("tools", rule, f"{function.name}: {', '.join(more) or schema['type']}")
    properties: dict[str, Any] = _schema_value(function, "properties", dict)
    required: list[Any] = _schema_value(function, "required", list)
    if unknown := [name for name in required if str(name) not in properties]:
        rule = "must have properties for all that is required"
        raise InvalidInput("tools", rule, f"{function.name}: {unknown[0]}")
    return [Field(name, property_of(function, name), name in required) for name in properties]


def _schema_value(function: Function, key: str, kind: type) -> Any:
    """The value of a key of the arguments' schema; empty if it is missing or null."""
    value = function.schema_of_arguments.get(key)
    if value is not None and not isinstance(value, kind):
        rule = f"must have an {KINDS[kind]} as {key} of its parameters"
        raise InvalidInput("tools", rule, f"{function.name}: {value}")
    return value or kind()


def property_of(function: Function | None, name: str) -> dict[str, Any]:
    """The schema of that argument; empty if nothing is known about it."""
    schema = {} if function is None else function.schema_of_arguments
    properties = schema.get("properties", {})
    found = properties.get(name) if isinstance(properties, dict) else None
    shared: dict[str, Any] = {key: schema[key] for key in DEFINITION_KEYS if key in schema}
    return {**shared, **found} if isinstance(found, dict) else {}


def types_of(schema: Any, root: dict[str, Any] | None = None, hops: int = 0) -> frozenset[str]:
    """The types that a schema allows; empty if it does not restrict them."""
    root = schema if root is None else root
    if not isinstance(schema, dict) or hops > MAX_REFERENCES:
        return frozenset()
    if isinstance(target := schema.get("$ref"), str):
        return types_of(resolve_reference(target, root), root, hops + 1)
    type_ = schema.get("type")
    if isinstance(type_, str):
        return frozenset({type_})
    if isinstance(type_, list):
        return frozenset(str(name) for name in type_)
    values = schema["enum"] if isinstance(schema.get("enum"), list) else []
    values = [schema["const"]] if "const" in schema else values
    if values:
        return frozenset(KINDS.get(type(value), "object") for value in values)
    choices = [name for key in CHOICE_KEYS for name in choices_of(schema, key)]
    return frozenset().union(*(types_of(name, root, hops + 1) for name in choices))


def choices_of(schema: dict[str, Any], key: str) -> list[Any]:
    """The schemas in a list such as `anyOf`; none if there is no list."""
    choices = schema.get(key)
    return choices if isinstance(choices, list) else []


def is_text(schema: dict[str, Any]) -> bool:
    """Whether the value must be text, as it is also taken to be if the schema names no type."""
    return types_of(schema) <= {"string"}


def resolve_reference(target: str, root: dict[str, Any]) -> Any:
    """What a `$ref` within the schema refers to; None if there is nothing."""
    place: Any = root
    for step in target.removeprefix("#/").split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        place = place.get(name) if isinstance(place, dict) else None
    return place


def kind_of(value: Any) -> frozenset[str]:
    """The JSON Schema types of a value."""
    kind = KINDS[type(value)]
    return frozenset({kind, "number"} if kind == "integer" else {kind})
