"""Objects that have the properties which their schema names, and no others."""

from __future__ import annotations

from typing import Any

from draftloop.grammars.keywords import changed, inner

# By these an object says what others it may have, or must.
OF_OTHERS = {"additionalProperties", "minProperties", "dependentRequired", "enum", "const"}
# Where one of these stands beside another, or beside what is said of an object, several schemas
# speak of its properties: each may name some that the others do not. COMBINING do so anywhere.
APPLIED = {"$ref", "anyOf", "oneOf", "allOf"}
OF_OBJECTS = {"properties", "patternProperties", "required", *OF_OTHERS}
COMBINING = {
    "not", "if", "dependentSchemas", "dependencies", "unevaluatedProperties", "$dynamicRef",
}  # fmt: skip


def closed(schema: Any) -> Any:
    """The same JSON Schema, whose objects have no properties but those that it names.

    By its standard they may have any others, and small models go on and on with them; vLLM and
    llama.cpp allow none either. `additionalProperties` holds where it is said, and schemas that put
    objects together from several stay as they are. What fits the result fits the schema. Raises
    RecursionError where it is too deep.
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
        return True  # what fits one of them, closed, may fit two as they stand
    return not COMBINING.isdisjoint(schema) or any(map(_combines, inner(schema)))


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    said = changed(schema, _closed)
    return {**said, "additionalProperties": False} if _names_all(schema) else said


def _names_all(schema: dict[str, Any]) -> bool:
    """Whether an object of its named properties alone can be one of it."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not OF_OTHERS.isdisjoint(schema):
        return False
    return isinstance(required, list) and all(name in properties for name in map(str, required))
