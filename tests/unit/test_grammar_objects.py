"""Which properties a JSON object may have beyond those that its schema names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from draftloop.config import bundled_model
from draftloop.grammar import Grammar
from draftloop.grammars.matching import Vocabulary
from draftloop.grammars.objects import close_objects
from orchestrator.gateway.tools.grammar import json_value

NUMBER: Any = {"type": "integer"}
A: Any = {"type": "object", "properties": {"a": NUMBER}, "required": ["a"]}
B: Any = {"type": "object", "properties": {"b": NUMBER}}
ONLY_A = {**A, "additionalProperties": False}
ONLY_B = {**B, "additionalProperties": False}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(bundled_model("drafter"), 4096, [0])


def is_allowed_prefix(vocabulary: Vocabulary, schema: Any, text: str) -> bool:
    """Whether an output may begin with the text."""
    matcher = vocabulary.matcher(Grammar("json_schema", json.dumps(schema)))
    tokens = vocabulary.tokenizer.tokenize_str(text)
    return bool(matcher.validate_tokens(tokens) == len(tokens))


def test_objects_have_only_named_properties(vocabulary: Vocabulary) -> None:
    """With pydantic's open schemas, a small model used to add properties without end."""
    assert is_allowed_prefix(vocabulary, A, '{"a": 1}')
    assert not is_allowed_prefix(vocabulary, A, '{"a": 1, "b')
    assert is_allowed_prefix(vocabulary, {**A, "additionalProperties": NUMBER}, '{"a": 1, "b": 2')


def test_call_arguments_have_only_named_properties() -> None:
    (_, schema) = json_value(A).split(" ", 1)
    assert json.loads(schema)["additionalProperties"] is False


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"$ref": "#/$defs/A", "$defs": {"A": A}}, {"$ref": "#/$defs/A", "$defs": {"A": ONLY_A}}),
        ({"type": "array", "items": A}, {"type": "array", "items": ONLY_A}),
        ({"anyOf": [A, B, {"type": "null"}]}, {"anyOf": [ONLY_A, ONLY_B, {"type": "null"}]}),
        ({"allOf": [A]}, {"allOf": [ONLY_A]}),
        ({"oneOf": [A, B], "discriminator": {"propertyName": "k"}},
         {"oneOf": [ONLY_A, ONLY_B], "discriminator": {"propertyName": "k"}}),
        ({"additionalProperties": A}, {"additionalProperties": ONLY_A}),
    ],
)  # fmt: skip
def test_nested_objects_are_closed(schema: Any, expected: Any) -> None:
    assert close_objects(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**A, "additionalProperties": True},
        {**A, "required": ["a", "b"]},
        {**A, "minProperties": 2},
        {**A, "dependentRequired": {"a": ["b"]}},
        {"properties": {"a": NUMBER}, "enum": [{"a": 1, "b": 2}]},
        {"enum": [{"properties": {"a": 1}}], "default": A},
        {"properties": "a"},
        True,
    ],
)
def test_objects_with_constraints_on_other_properties_stay_open(schema: Any) -> None:
    assert close_objects(schema) == schema


@pytest.mark.parametrize(
    "together",
    [
        {"allOf": [A, B]},
        {**A, "anyOf": [B, {"required": ["c"]}]},
        {**A, "$ref": "#/$defs/B"},
        {"$ref": "#/$defs/B", "anyOf": [A, B]},
        {"oneOf": [A, B]},
        {"if": A, "then": B},
        {**A, "unevaluatedProperties": False},
        {"not": A},
    ],
)
def test_combined_schemas_of_one_object_stay_open(together: Any) -> None:
    """Closed by each schema on its own, it could not have the properties of the others."""
    schema = {"type": "array", "items": together, "$defs": {"B": B}}
    assert close_objects(schema) == schema
