"""What a function takes, argument by argument, for notations that do not write one JSON object."""

from __future__ import annotations

from typing import Any, NamedTuple

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.schemas import Function

SHARED = ("$defs", "definitions")  # what its parts may refer to
# Of a schema of arguments: what says nothing more about them than their own schemas do.
PLAIN = {
    "type", "properties", "required", "additionalProperties", *SHARED, "title", "description",
    "default", "examples", "$schema", "$id", "$comment", "strict",
}  # fmt: skip
KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array",
         dict: "object", type(None): "null"}  # fmt: skip
CHOICES = ("anyOf", "oneOf", "allOf")
MOST_HOPS = 16  # from one schema to another


class Field(NamedTuple):
    """One argument. `schema` stands by itself: what it refers to, it brings along."""

    name: str
    schema: dict[str, Any]
    required: bool


def fields_of(function: Function) -> list[Field]:
    """All, in the order of the schema.

    Raises InvalidInput where it says more than the schemas of its properties do.
    """
    schema = function.schema_of_arguments
    more = sorted(schema.keys() - PLAIN)
    if schema["type"] != "object" or more:
        rule = "must have parameters of plain properties, as this model writes calls"
        raise InvalidInput("tools", rule, f"{function.name}: {', '.join(more) or schema['type']}")
    properties: dict[str, Any] = _said(function, "properties", dict)
    required: list[Any] = _said(function, "required", list)
    if unknown := [name for name in required if str(name) not in properties]:
        rule = "must have properties for all that is required"
        raise InvalidInput("tools", rule, f"{function.name}: {unknown[0]}")
    return [Field(name, property_of(function, name), name in required) for name in properties]


def _said(function: Function, key: str, kind: type) -> Any:
    """What a schema of arguments says there; nothing is as good as `null`."""
    said = function.schema_of_arguments.get(key)
    if said is not None and not isinstance(said, kind):
        rule = f"must have an {KINDS[kind]} as {key} of its parameters"
        raise InvalidInput("tools", rule, f"{function.name}: {said}")
    return said or kind()


def property_of(function: Function | None, name: str) -> dict[str, Any]:
    """The schema of that argument; an empty one where nothing is known of it."""
    schema = {} if function is None else function.schema_of_arguments
    said = schema.get("properties", {})
    found = said.get(name) if isinstance(said, dict) else None
    shared: dict[str, Any] = {key: schema[key] for key in SHARED if key in schema}
    return {**shared, **found} if isinstance(found, dict) else {}


def types_of(schema: Any, root: dict[str, Any] | None = None, hops: int = 0) -> frozenset[str]:
    """The types that a schema allows; none where it says nothing of them."""
    root = schema if root is None else root
    if not isinstance(schema, dict) or hops > MOST_HOPS:
        return frozenset()
    if isinstance(target := schema.get("$ref"), str):
        return types_of(referred(target, root), root, hops + 1)
    said = schema.get("type")
    if isinstance(said, str):
        return frozenset({said})
    if isinstance(said, list):
        return frozenset(str(one) for one in said)
    values = schema["enum"] if isinstance(schema.get("enum"), list) else []
    values = [schema["const"]] if "const" in schema else values
    if values:
        return frozenset(KINDS.get(type(value), "object") for value in values)
    choices = [one for key in CHOICES for one in choices_of(schema, key)]
    return frozenset().union(*(types_of(one, root, hops + 1) for one in choices))


def choices_of(schema: dict[str, Any], key: str) -> list[Any]:
    """Schemas of which one or all hold, as `anyOf` and its like name them."""
    said = schema.get(key)
    return said if isinstance(said, list) else []


def is_text(schema: dict[str, Any]) -> bool:
    """Whether the value is text, and nothing else; so it is where nothing is said."""
    return types_of(schema) <= {"string"}


def referred(target: str, root: dict[str, Any]) -> Any:
    """What a `$ref` within the schema is; None where it is nothing."""
    place: Any = root
    for step in target.removeprefix("#/").split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        place = place.get(name) if isinstance(place, dict) else None
    return place


def kind_of(value: Any) -> frozenset[str]:
    """The types that a value is of."""
    kind = KINDS[type(value)]
    return frozenset({kind, "number"} if kind == "integer" else {kind})
