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


def fits(vocabulary: Vocabulary, schema: Any, text: str) -> bool:
    """Whether an output may begin with the text."""
    matcher = vocabulary.matcher(Grammar("json_schema", json.dumps(schema)))
    tokens = vocabulary.tokenizer.tokenize_str(text)
    return bool(matcher.validate_tokens(tokens) == len(tokens))


def test_an_object_has_the_properties_that_are_named(vocabulary: Vocabulary) -> None:
    """With pydantic's open schemas, a small model used to add properties without end."""
    assert fits(vocabulary, A, '{"a": 1}')
    assert not fits(vocabulary, A, '{"a": 1, "b')
    assert fits(vocabulary, {**A, "additionalProperties": NUMBER}, '{"a": 1, "b": 2')


def test_so_have_arguments_of_required_calls() -> None:
    (_, said) = json_value(A).split(" ", 1)
    assert json.loads(said)["additionalProperties"] is False


@pytest.mark.parametrize(
    ("said", "held"),
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
def test_objects_within_a_schema(said: Any, held: Any) -> None:
    assert close_objects(said) == held


@pytest.mark.parametrize(
    "said",
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
def test_objects_that_need_others_may_have_them(said: Any) -> None:
    assert close_objects(said) == said


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
def test_schemas_that_speak_of_one_object_stay_as_they_are(together: Any) -> None:
    """Closed by each schema on its own, it could not have the properties of the others."""
    said = {"type": "array", "items": together, "$defs": {"B": B}}
    assert close_objects(said) == said
