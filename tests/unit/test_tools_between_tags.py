"""Calls between tags, in all families: values typed by the tool's schema, texts unchanged."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.fields import fields_of, property_of, types_of
from orchestrator.gateway.tools.schemas import Function
from tests.support.calls import is_allowed, read_calls
from tests.support.marks import in_pieces, tokens_with
from tests.support.tagged import KNOWN, PARAMETERS, STYLES, WRITE, Style

each_style = pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
each_tokenizer = pytest.mark.parametrize("special", [None, False, True])


@each_style
@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("path", 'a "b"\n\n  c\\n\n', 'a "b"\n\n  c\\n\n'),
        ("path", '\na "b"\n', '\na "b"\n'),
        ("path", "5", "5"),
        ("path", "null", "null"),
        ("path", "", ""),
        ("path", "<b> </param </arg_valu </parameterx", "<b> </param </arg_valu </parameterx"),
        ("lines", "12", 12),
        ("lines", " 12\n", 12),
        ("lines", "-3", -3),
        ("lines", "twelve", "twelve"),
        ("share", "0.5", 0.5),
        ("share", "1e999", "1e999"),
        ("deep", "true", True),
        ("deep", "True", True),
        ("tags", '["a", "</arg_value></parameter>"]', ["a", "</arg_value></parameter>"]),
        ("tags", "['a', 'b']", ["a", "b"]),
        ("tags", "['\\ud83d\\ude00', '\\ud83d']", ["\U0001f600", "\ufffd"]),
        ("tags", "[\n  1,\n  2\n]", [1, 2]),
        ("more", '{"x": {"y": [null, 1.5]}}', {"x": {"y": [None, 1.5]}}),
        ("kind", "b c", "b c"),
        ("either", "null", None),
        ("either", "5", "5"),
        ("either", '"five"', "five"),
        ("either", "five", "five"),
        ("unknown", "5", "5"),
    ],
)
def test_values_have_the_types_of_the_schema(style: Style, key: str, text: str, value: Any) -> None:
    assert style.arguments_of(style.written(**{key: text})) == {key: value}


CALLED = [
    {"path": 'é "x"\n', "lines": 3, "tags": ["END", 1], "more": {}},
    {"path": "", "either": None},
    {},
]


def three_calls(style: Style) -> tuple[str, list[Any]]:
    """An answer and its parsed calls; one value contains the end mark of another."""
    calls = [
        {"path": 'é "x"\n', "lines": "3", "tags": f'["{style.end}", 1]', "more": "{}"},
        {"path": "", "either": "null"},
        {},
    ]  # fmt: skip
    expected = json.loads(json.dumps(CALLED).replace("END", style.end))
    return style.answer([style.call(one) for one in calls]), expected


@each_style
def test_calls_are_read_with_a_cut_at_any_letter(style: Style) -> None:
    answer, expected = three_calls(style)
    for cut in range(len(answer)):
        content, calls = read_calls(style.notation, [answer[:cut], answer[cut:]], KNOWN)
        assert content == "" and [json.loads(arguments) for _, arguments in calls] == expected


@each_style
@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 700)))
def test_calls_are_read_in_any_pieces(style: Style, cuts: list[int]) -> None:
    text = f"Let me see.\n\n{three_calls(style)[0]}\nDone "
    assert read_calls(style.notation, in_pieces(text, cuts), KNOWN) == read_calls(
        style.notation, [text], KNOWN
    )
    assert read_calls(style.notation, [text], KNOWN)[0] == "Let me see.\nDone"


@each_style
def test_truncated_answers_are_read(style: Style) -> None:
    answer = style.written(path="abc")
    named = answer.index("write")
    assert read_calls(style.notation, [answer[:named]], KNOWN) == (answer[:named], [])
    cut = answer[: answer.index("bc")]
    assert read_calls(style.notation, [cut], KNOWN) == ("", [("write", '{"path": "a')])


GRAMMATICAL = [
    ({"path": "x"}, True),
    ({"path": 'a\n"b"\n'}, True),
    ({"path": "\nx\n"}, True),
    ({"path": ""}, True),
    ({"path": "x", "lines": "5", "share": "0.5", "deep": "true"}, True),
    ({"path": "x", "tags": '["a", "END"]', "more": '{"x": 1}', "kind": "b c"}, True),
    ({"path": "x", "kind": ""}, True),
    ({"path": "x", "either": "null"}, True),
    ({"path": "x", "either": '"y"'}, True),
    ({"lines": "5"}, False),
    ({"path": "x", "lines": "five"}, False),
    ({"path": "x", "kind": "c"}, False),
    ({"path": "x", "town": "c"}, False),
    ({"path": "xEND"}, False),
    ({"lines": "5", "path": "x"}, False),
]


@each_style
@each_tokenizer
@pytest.mark.parametrize(("arguments", "allowed"), GRAMMATICAL)
def test_calls_allowed_by_the_grammar_match_the_schema(
    style: Style, arguments: dict[str, str], allowed: bool, special: bool | None
) -> None:
    """The marks of the notation may be letters, or tokens of their own."""
    notation = style.notation
    tokens = tokens_with(*notation.marks, special=special)
    arguments = {key: text.replace("END", style.end) for key, text in arguments.items()}
    marked = any(mark in text for text in arguments.values() for mark in notation.marks)
    if special is not None:
        allowed = allowed and not marked  # otherwise they would be written as these tokens
    call = style.call(arguments)
    one, two = style.answer([call]), style.answer([call, call])
    assert is_allowed(notation, [WRITE], one, several=False, tokens=tokens) is allowed
    if allowed:
        parsed = style.arguments_of(one)
        jsonschema.validate(parsed, PARAMETERS)
        assert list(parsed) == list(arguments)
        assert is_allowed(notation, [WRITE], two, tokens=tokens)
        assert not is_allowed(notation, [WRITE], two, several=False, tokens=tokens)


@each_style
@each_tokenizer
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "minLength": 2, "maxLength": 3}, "a\n", "abcd"),
        ({"type": "string", "minLength": 1}, "a", ""),
        ({"type": "string", "pattern": "^a/[0-9]+$"}, "a/12", "a/1b"),
        ({"type": "string", "pattern": "b+"}, "abbc", "ac"),
        ({"type": "string", "const": "x"}, "x", "y"),
        ({"oneOf": [{"const": "x"}, {"type": "string", "maxLength": 1}]}, "y", "yy"),
        ({"type": "integer", "minimum": 3}, "3", "2"),
    ],
)
def test_grammar_enforces_value_schemas(
    style: Style, schema: dict[str, Any], good: str, bad: str, special: bool | None
) -> None:
    tokens = tokens_with(*style.notation.marks, special=special)
    function = Function(name="write", parameters={"properties": {"a": schema}})
    assert is_allowed(style.notation, [function], style.written(a=good), tokens=tokens)
    assert not is_allowed(style.notation, [function], style.written(a=bad), tokens=tokens)


@each_style
@pytest.mark.parametrize(
    "parameters",
    [
        {"required": None, "properties": {"path": {"type": "string"}}},
        {"properties": None, "required": None},
        {"properties": {"path": {"anyOf": None}}},
        {"properties": {"path": {"allOf": 5}, "lines": None}},
        {"properties": {"path": {"type": "string", "enum": None}}},
        {"properties": {"path": {"type": "string", "enum": 5}}},
    ],
)
def test_nulls_in_a_schema_are_ignored(style: Style, parameters: dict[str, Any]) -> None:
    """Some languages write an empty list as null; types in such parts do not count."""
    function = Function(name="write", parameters=parameters)
    path = parameters["properties"] or {}
    answer = style.answer([style.call({"path": "a"} if "path" in path else {})])
    assert is_allowed(style.notation, [function], answer)
    assert [name for name, _ in read_calls(style.notation, [answer], {"write": function})[1]] == [
        "write"
    ]


@each_style
@pytest.mark.parametrize("beside", [{}, {"type": "string"}], ids=["", "with a type"])
def test_schema_that_refers_to_itself_many_times_is_read_once(
    style: Style, beside: dict[str, Any]
) -> None:
    """It used to be read 20 ** 8 times, on the event loop."""
    again = {"$ref": "#/$defs/a"}
    parameters = {
        "properties": {"path": again},
        "$defs": {"a": {**beside, "anyOf": [*[again] * 20, {"type": "string"}]}},
    }
    function = Function(name="write", parameters=parameters)
    answer = style.answer([style.call({"path": "a"})])
    assert is_allowed(style.notation, [function], answer)
    assert read_calls(style.notation, [answer], {"write": function})[1]


def test_argument_carries_only_the_definitions_that_it_needs() -> None:
    """All of them for each argument made the grammar of a usual tool too long."""
    definitions = {
        "a": {"items": {"$ref": "#/$defs/b/properties/x"}, "type": "array"},
        "b": {"properties": {"x": {"type": "integer"}}},
        "c": {"$ref": "#/$defs/c"},
    }
    parameters = {
        "properties": {
            "n": {"type": "integer"},
            "list": {"$ref": "#/$defs/a"},
            "lost": {"$ref": "#/$defs/z"},
            "c": {"$ref": "#/$defs/c"},
        },
        "$defs": definitions,
    }
    function = Function(name="f", parameters=parameters)
    needed = {field.name: sorted(field.schema.get("$defs", {})) for field in fields_of(function)}
    assert needed == {"n": [], "list": ["a", "b"], "lost": [], "c": ["c"]}
    assert types_of(property_of(function, "list")) == {"array"}
    assert types_of(property_of(function, "c")) == types_of(property_of(function, "lost")) == set()


@each_style
@pytest.mark.parametrize(
    "function",
    [
        Function(name="a", parameters={"anyOf": [{"properties": {}}]}),
        Function(name="a", parameters={"required": ["b"]}),
        Function(name="a", parameters={"properties": {"b": {"enum": ["END"]}}}),
        Function(name="a", parameters={"properties": {" b": {}}}),
        Function(name="a\nb"),
        Function(name="a", parameters={"required": 5}),
        Function(name="a", parameters={"properties": [], "required": ["b"]}),
        Function(name="a", parameters={"properties": "b"}),
        Function(name="a", parameters={"required": [{}], "properties": {"b": {}}}),
    ],
)
def test_names_invalid_in_tags_are_refused(style: Style, function: Function) -> None:
    text = function.model_dump_json().replace("END", style.end)
    with pytest.raises(InvalidInput) as caught:
        is_allowed(style.notation, [Function.model_validate_json(text)], "")
    assert caught.value.field == "tools"
