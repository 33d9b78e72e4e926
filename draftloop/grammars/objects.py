"""Closes JSON Schemas: objects get only the properties that their schema names."""

from __future__ import annotations

from typing import Any

from draftloop.grammars.keywords import map_subschemas, subschemas

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


def close_objects(schema: Any) -> Any:
    """The same JSON Schema, with objects limited to the properties that it names.

    By the standard, objects may have any further properties, and small models keep adding them.
    vLLM and llama.cpp do not allow them either. `additionalProperties` is respected where it is
    given, and schemas that combine several schemas for one object stay as they are. Whatever
    matches the result also matches the original. Raises RecursionError if the schema is nested too
    deeply.
    """
    return schema if _combines_schemas(schema) else _close(schema)


def _combines_schemas(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_combines_schemas, schema))
    if not isinstance(schema, dict):
        return False
    applied = APPLIED & schema.keys()
    if len(applied) > 1 or (applied and not OF_OBJECTS.isdisjoint(schema)):
        return True
    if isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1:
        return True
    if "oneOf" in schema and "discriminator" not in schema:
        return True  # a value that matches one closed alternative may match two open ones
    return not COMBINING.isdisjoint(schema) or any(map(_combines_schemas, subschemas(schema)))


def _close(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_close(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    result = map_subschemas(schema, _close)
    return {**result, "additionalProperties": False} if _can_be_closed(schema) else result


def _can_be_closed(schema: dict[str, Any]) -> bool:
    """Whether an object with only the named properties can match the schema."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not OF_OTHERS.isdisjoint(schema):
        return False
    return isinstance(required, list) and all(name in properties for name in map(str, required))
