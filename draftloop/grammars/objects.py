"""Closes JSON Schemas: objects get only the properties that their schema names."""

from __future__ import annotations

from typing import Any

from draftloop.grammars.keywords import changed, inner

# Keywords with which an object schema says which further properties it may or must have.
OF_OTHERS = {"additionalProperties", "minProperties", "dependentRequired", "enum", "const"}
# If one of APPLIED occurs beside another one, or beside one of OF_OBJECTS, several schemas describe
# the same object, and each may name properties that the others do not. COMBINING keywords have that
# effect wherever they occur.
APPLIED = {"$ref", "anyOf", "oneOf", "allOf"}
OF_OBJECTS = {"properties", "patternProperties", "required", *OF_OTHERS}
COMBINING = {
    "not", "if", "dependentSchemas", "dependencies", "unevaluatedProperties", "$dynamicRef",
}  # fmt: skip


def closed(schema: Any) -> Any:
    """The same JSON Schema, with objects limited to the properties that it names.

    By the standard, objects may have any further properties, and small models keep adding them.
    vLLM and llama.cpp do not allow them either. `additionalProperties` is respected where it is
    given, and schemas that combine several schemas for one object stay as they are. Whatever
    matches the result also matches the original. Raises RecursionError if the schema is nested too
    deeply.
    """
    return schema if _combines(schema) else _closed(schema)


def _combines(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_combines, schema))
    if not isinstance(schema, dict):
        return False
    applied = APPLIED & schema.keys()
    if len(applied) > 1 or (applied and not OF_OBJECTS.isdisjoint(schema)):
        return True
    if isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1:
        return True
    if "oneOf" in schema and "discriminator" not in schema:
        return True  # a value that matches one closed alternative may match two open ones
    return not COMBINING.isdisjoint(schema) or any(map(_combines, inner(schema)))


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    said = changed(schema, _closed)
    return {**said, "additionalProperties": False} if _names_all(schema) else said


def _names_all(schema: dict[str, Any]) -> bool:
    """Whether an object with only the named properties can match the schema."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not OF_OTHERS.isdisjoint(schema):
        return False
    return isinstance(required, list) and all(name in properties for name in map(str, required))
