"""A function's arguments one by one, for notations that do not write them as one JSON object."""

from __future__ import annotations

from typing import Any, NamedTuple

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.definitions import (
    DEFINITION_KEYS,
    needed_definitions,
    resolve_reference,
)
from orchestrator.gateway.tools.schemas import Function

# Keys of a schema of arguments that add no rule to the arguments' own schemas.
PLAIN_KEYS = {
    "type", "properties", "required", "additionalProperties", *DEFINITION_KEYS, "title",
    "description", "default", "examples", "$schema", "$id", "$comment", "strict",
}  # fmt: skip
KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array",
         dict: "object", type(None): "null"}  # fmt: skip
CHOICE_KEYS = ("anyOf", "oneOf", "allOf")


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
    return {**needed_definitions(found, schema), **found} if isinstance(found, dict) else {}


def types_of(schema: dict[str, Any]) -> frozenset[str]:
    """The types that a self-contained schema allows; empty if it does not restrict them."""
    types: set[str] = set()
    followed: set[str] = set()  # references; a schema may contain itself
    unread: list[Any] = [schema]
    while unread:
        part = unread.pop()
        if not isinstance(part, dict):
            continue
        if isinstance(target := part.get("$ref"), str):
            if target not in followed:
                followed.add(target)
                unread.append(resolve_reference(target, schema))
        elif stated := _stated_types(part):
            types |= stated
        else:
            unread += [choice for key in CHOICE_KEYS for choice in choices_of(part, key)]
    return frozenset(types)


def _stated_types(schema: dict[str, Any]) -> set[str]:
    """The types that a schema names, or those of the values that it lists."""
    type_ = schema.get("type")
    if isinstance(type_, str):
        return {type_}
    if isinstance(type_, list):
        return {str(name) for name in type_}
    return {KINDS.get(type(value), "object") for value in listed_values(schema) or ()}


def listed_values(schema: dict[str, Any]) -> list[Any] | None:
    """The values of `const` or `enum`; None if the schema has neither."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def choices_of(schema: dict[str, Any], key: str) -> list[Any]:
    """The schemas in a list such as `anyOf`; none if there is no list."""
    choices = schema.get(key)
    return choices if isinstance(choices, list) else []


def is_text(schema: dict[str, Any]) -> bool:
    """Whether the value must be text, as it is also taken to be if the schema names no type."""
    return types_of(schema) <= {"string"}


def kind_of(value: Any) -> frozenset[str]:
    """The JSON Schema types of a value."""
    kind = KINDS[type(value)]
    return frozenset({kind, "number"} if kind == "integer" else {kind})
