"""Calls of GLM: pairs of tags for arguments, typed by the tool's schema, texts as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.glm45 import GLM45
from orchestrator.gateway.tools.reader import CallReader
from orchestrator.gateway.tools.schemas import Function
from tests.support.calls import assert_told_whole, is_allowed, read
from tests.support.marks import in_pieces, tokenizer_with

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "lines": {"type": "integer"},
        "deep": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"$ref": "#/$defs/more"},
        "kind": {"enum": ["a", "b c", ""]},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["path"],
    "additionalProperties": False,
    "$defs": {"more": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
WRITE = Function(name="write", parameters=PARAMETERS)
KNOWN = {"write": WRITE}


def written(line: str = "\n", /, **arguments: str) -> str:
    """A call as templates show it: of 4.5 and 4.6 with line ends, later without."""
    said = "".join(
        f"<arg_key>{key}</arg_key>{line}<arg_value>{text}</arg_value>{line}"
        for key, text in arguments.items()
    )
    return f"<tool_call>write{line}{said}</tool_call>"


def arguments_of(answer: str) -> Any:
    content, ((name, arguments),) = read(GLM45, [answer], KNOWN)
    assert (content, name) == ("", "write")
    assert read(GLM45, list(answer), KNOWN) == (content, [(name, arguments)])
    return json.loads(arguments)


@pytest.mark.parametrize("line", ["\n", ""])
@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("path", '\na "b"\n\n  c\\n\n', '\na "b"\n\n  c\\n\n'),
        ("path", "5", "5"),
        ("path", "", ""),
        ("path", "<b> </arg_valu </tool_call><arg_key>", "<b> </arg_valu </tool_call><arg_key>"),
        ("lines", "12", 12),
        ("lines", " 12\n", 12),
        ("lines", "twelve", "twelve"),
        ("deep", "true", True),
        ("deep", "True", True),
        ("tags", '["a", "</arg_value>"]', ["a", "</arg_value>"]),
        ("more", '{"x": {"y": [null, 1.5]}}', {"x": {"y": [None, 1.5]}}),
        ("kind", "b c", "b c"),
        ("either", "null", None),
        ("either", "5", "5"),
        ("either", '"five"', "five"),
        ("unknown", "5", "5"),
    ],
)
def test_values_are_of_the_types_of_the_schema(key: str, text: str, value: Any, line: str) -> None:
    assert arguments_of(written(line, **{key: text})) == {key: value}


FIRST = {"path": 'é "x"\n', "lines": "3", "tags": '["</arg_value>", 1]', "more": "{}"}
ANSWER = written(**FIRST) + "\n" + written("", path="", either="null") + written()
CALLED = [
    {"path": 'é "x"\n', "lines": 3, "tags": ["</arg_value>", 1], "more": {}},
    {"path": "", "either": None},
    {},
]


def test_a_cut_at_every_letter() -> None:
    for cut in range(len(ANSWER)):
        content, calls = read(GLM45, [ANSWER[:cut], ANSWER[cut:]], KNOWN)
        assert content == "" and [json.loads(arguments) for _, arguments in calls] == CALLED


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 700)))
def test_calls_in_any_pieces(cuts: list[int]) -> None:
    text = f"Let me see.\n\n{ANSWER}\nDone "
    assert read(GLM45, in_pieces(text, cuts), KNOWN) == read(GLM45, [text], KNOWN)
    assert read(GLM45, [text], KNOWN)[0] == "Let me see.\nDone"


PIECES = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
          "write", "path", "lines", "\n", " ", "5", '"', "{", "}", "<", "<arg_", "</arg",
          written(path="x"))  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=20), cuts=st.lists(st.integers(0, 400)))
@example(pieces=["<tool_call>", "write", "<arg_key>", "path", "</tool_call>", "x"], cuts=[30])
@example(pieces=["<tool_call>", "write", "<arg_key>", "</arg_key>", "<arg_value>", "5"], cuts=[])
@example(pieces=["<tool_call>", "a" * 300, written(path="x")], cuts=[230])
def test_any_text_is_told_whole_however_it_comes(pieces: list[str], cuts: list[int]) -> None:
    assert_told_whole(GLM45, pieces, cuts, KNOWN)


@pytest.mark.parametrize(
    "answer",
    [
        "<tool_call> is the mark before calls, and </tool_call> the one behind them.",
        '<tool_call>{"name": "write", "arguments": {}}</tool_call>',
        "<tool_call>write\npath</tool_call>",
        "<tool_call>" + "a" * 500 + "</tool_call>",
        "<tool_call>write\n",
    ],
)
def test_what_is_no_call_is_content(answer: str) -> None:
    assert read(GLM45, [answer]) == read(GLM45, list(answer)) == (answer, [])


def test_spaces_between_tags_and_a_key_without_value() -> None:
    spaced = written(" ", path="x", lines="5")
    assert arguments_of(spaced) == {"path": "x", "lines": 5}
    assert arguments_of(spaced.replace("</tool_call>", "<arg_key>deep</arg_key></tool_call>")) == {
        "path": "x", "lines": 5,
    }  # fmt: skip


def test_arguments_come_while_they_are_written() -> None:
    reader = CallReader(GLM45, KNOWN)
    assert reader.feed("Yes <tool_call>wri").content == "Yes"
    assert reader.feed("te\n<arg_k").calls == []
    (begun,) = reader.feed("ey>pa").calls
    assert (begun.name, begun.arguments) == ("write", "{")
    said = ["th</arg_key>\n<arg_value>on", '"\n', "two</arg", "_value>\n<arg_key>lines</arg_key>"]
    pieces = ["".join(part.arguments for part in reader.feed(text).calls) for text in said]
    assert pieces == ['"path": "on', '\\"\\n', "two", '"']
    pieces = [part.arguments for part in reader.feed("<arg_value>5</arg_value></tool_call>").calls]
    assert pieces == [', "lines": 5}']


def test_an_answer_that_was_cut_off() -> None:
    answer = written(path="abc")
    assert read(GLM45, [answer[:15]]) == (answer[:15], [])
    assert read(GLM45, [answer[: answer.index("bc")]]) == ("", [("write", '{"path": "a')])


GRAMMATICAL = [
    ({"path": "x"}, True),
    ({"path": 'a\n"b"\n</tool_call>'}, True),
    ({"path": ""}, True),
    ({"path": "x", "lines": "5", "deep": "true"}, True),
    ({"path": "x", "tags": '["a", "</arg_value>"]', "more": '{"x": 1}', "kind": "b c"}, True),
    ({"path": "x", "kind": ""}, True),
    ({"path": "x", "either": "null"}, True),
    ({"path": "x", "either": '"y"'}, True),
    ({"lines": "5"}, False),
    ({"path": "x", "lines": "five"}, False),
    ({"path": "x", "kind": "c"}, False),
    ({"path": "x", "town": "c"}, False),
    ({"path": "x</arg_value>"}, False),
    ({"lines": "5", "path": "x"}, False),
]


@pytest.mark.parametrize("special", [None, False, True])
@pytest.mark.parametrize("line", ["\n", ""])
@pytest.mark.parametrize(("arguments", "allowed"), GRAMMATICAL)
def test_what_the_grammar_allows_is_read_as_the_schema_wants(
    tmp_path: Path, arguments: dict[str, str], allowed: bool, line: str, special: bool | None
) -> None:
    """Whether its tags are letters or tokens of their own."""
    folder = None if special is None else tmp_path
    tags = any(mark in text for text in arguments.values() for mark in GLM45.marks)
    if folder is not None:
        tokenizer_with(folder, *GLM45.marks, special=bool(special))
        allowed = allowed and not tags  # which would be written as these tokens
    text = written(line, **arguments)
    assert is_allowed(GLM45, [WRITE], text, several=False, folder=folder) is allowed
    if allowed:
        meant = arguments_of(text)
        jsonschema.validate(meant, PARAMETERS)
        assert list(meant) == list(arguments)
        assert is_allowed(GLM45, [WRITE], f"{text}{line}{text}", folder=folder)
        assert not is_allowed(GLM45, [WRITE], f"{text}\n{text}", several=False, folder=folder)


@pytest.mark.parametrize("special", [None, True])
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "minLength": 2, "maxLength": 3}, "a\n", "abcd"),
        ({"type": "string", "minLength": 1}, "a", ""),
        ({"type": "string", "pattern": "^a/[0-9]+$"}, "a/12", "a/1b"),
        ({"type": "string", "const": "x"}, "x", "y"),
        ({"oneOf": [{"const": "x"}, {"type": "string", "maxLength": 1}]}, "y", "yy"),
        ({"type": "integer", "minimum": 3}, "3", "2"),
    ],
)
def test_what_schemas_say_of_values(
    tmp_path: Path, schema: dict[str, Any], good: str, bad: str, special: bool | None
) -> None:
    folder = None if special is None else tmp_path
    if folder is not None:
        tokenizer_with(folder, *GLM45.marks, special=True)
    function = Function(name="write", parameters={"properties": {"a": schema}})
    assert is_allowed(GLM45, [function], written(a=good), folder=folder)
    assert not is_allowed(GLM45, [function], written(a=bad), folder=folder)


@pytest.mark.parametrize(
    "function",
    [
        Function(name="a<b"),
        Function(name="a b"),
        Function(name="a", parameters={"anyOf": [{"properties": {}}]}),
        Function(name="a", parameters={"required": ["b"]}),
        Function(name="a", parameters={"properties": {" b": {}}}),
        Function(name="a", parameters={"properties": {"b": {"enum": ["</arg_value>"]}}}),
    ],
)
def test_what_tags_cannot_hold_is_refused(function: Function) -> None:
    with pytest.raises(InvalidInput) as caught:
        is_allowed(GLM45, [function], "")
    assert caught.value.field == "tools"
