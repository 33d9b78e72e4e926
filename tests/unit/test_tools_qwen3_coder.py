"""Calls between tags, as Qwen3-Coder writes them: typed by the tool's schema, texts as they are."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.qwen3_coder import QWEN3_CODER
from orchestrator.gateway.tools.reader import CallReader
from orchestrator.gateway.tools.schemas import Function
from tests.support.calls import assert_told_whole, is_allowed, read
from tests.support.marks import in_pieces

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "lines": {"type": "integer"},
        "share": {"type": "number"},
        "deep": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"$ref": "#/$defs/more"},
        "kind": {"enum": ["a", "b c"]},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["path"],
    "additionalProperties": False,
    "$defs": {"more": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
WRITE = Function(name="write", parameters=PARAMETERS)
KNOWN = {"write": WRITE}


def written(**arguments: str) -> str:
    """A call as the template shows it."""
    said = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in arguments.items())
    return f"<tool_call>\n<function=write>\n{said}</function>\n</tool_call>"


def arguments_of(answer: str) -> Any:
    content, ((name, arguments),) = read(QWEN3_CODER, [answer], KNOWN)
    assert (content, name) == ("", "write")
    assert read(QWEN3_CODER, list(answer), KNOWN) == (content, [(name, arguments)])
    return json.loads(arguments)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("path", 'a "b"\n\n  c\\n\n', 'a "b"\n\n  c\\n\n'),
        ("path", "5", "5"),
        ("path", "null", "null"),
        ("path", "", ""),
        ("path", "<b> </param </parameterx", "<b> </param </parameterx"),
        ("lines", "12", 12),
        ("lines", "-3", -3),
        ("lines", "twelve", "twelve"),
        ("share", "0.5", 0.5),
        ("share", "1e999", "1e999"),
        ("deep", "true", True),
        ("deep", "True", True),
        ("tags", '["a", "</parameter>"]', ["a", "</parameter>"]),
        ("tags", "['a', 'b']", ["a", "b"]),
        ("tags", "[\n  1,\n  2\n]", [1, 2]),
        ("more", '{"x": {"y": [null, 1.5]}}', {"x": {"y": [None, 1.5]}}),
        ("more", '{"x": "', '{"x": "'),
        ("kind", "b c", "b c"),
        ("either", "null", None),
        ("either", "5", "5"),
        ("either", '"five"', "five"),
        ("either", "five", "five"),
        ("unknown", "5", "5"),
    ],
)
def test_values_are_of_the_types_of_the_schema(key: str, text: str, value: Any) -> None:
    assert arguments_of(written(**{key: text})) == {key: value}


ANSWER = written(path='é "x"\n', lines="3", tags='["</parameter>", 1]', more="{}") + "\n" + written(
    path="", either="null"
)  # fmt: skip
CALLED = [
    {"path": 'é "x"\n', "lines": 3, "tags": ["</parameter>", 1], "more": {}},
    {"path": "", "either": None},
]


def test_a_cut_at_every_letter() -> None:
    for cut in range(len(ANSWER)):
        content, calls = read(QWEN3_CODER, [ANSWER[:cut], ANSWER[cut:]], KNOWN)
        assert content == "" and [json.loads(arguments) for _, arguments in calls] == CALLED


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 600)))
def test_calls_in_any_pieces(cuts: list[int]) -> None:
    text = f"Let me see.\n\n{ANSWER}\nDone "
    assert read(QWEN3_CODER, in_pieces(text, cuts), KNOWN) == read(QWEN3_CODER, [text], KNOWN)
    assert read(QWEN3_CODER, [text], KNOWN)[0] == "Let me see.\nDone"


PIECES = ("<tool_call>", "</tool_call>", "<function=", "write", ">", "\n", "</function>", "f",
          "<parameter=", "path>", "lines>", "</parameter>", "</param", "5", '"', "{", " ", "<",
          written(path="x"))  # fmt: skip


@settings(deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=20), cuts=st.lists(st.integers(0, 400)))
@example(pieces=["<function=", "\n", "<tool_call>", "f"], cuts=[])
@example(pieces=["<function=", "f", ">", "<parameter=", "\n", "path>", "</function>"], cuts=[20])
def test_any_text_is_told_whole_however_it_comes(pieces: list[str], cuts: list[int]) -> None:
    assert_told_whole(QWEN3_CODER, pieces, cuts, KNOWN)


@pytest.mark.parametrize(
    "answer",
    [
        "<function=write>\n<parameter=path>\nx\n</parameter>\n</function>",
        "<tool_call>\n<function=write>\n<parameter=path>\nx</function>\n</tool_call>",
        "<tool_call><function=write><parameter=path>x</parameter></function></tool_call>",
        "<tool_call>\n<function=write>\n<parameter=path>\nx\n</parameter>\n</tool_call>",
    ],
)
def test_what_models_forget(answer: str) -> None:
    """The tag before a call, or one that ends a value or the call, or line ends."""
    assert arguments_of(answer) == {"path": "x"}


def test_a_forgotten_end_before_another_argument() -> None:
    answer = "<function=write>\n<parameter=path>\nx\n<parameter=lines>\n5\n</parameter></function>"
    assert arguments_of(answer) == {"path": "x", "lines": 5}


def test_arguments_come_while_they_are_written() -> None:
    reader = CallReader(QWEN3_CODER, KNOWN)
    assert reader.feed("Yes <tool_call>\n<function=wri").content == "Yes"
    (begun,) = reader.feed("te>\n<par").calls
    assert (begun.name, begun.arguments) == ("write", "{")
    said = ["ameter=path>\n", 'on"', "e\n", "two\n</para", "meter>\n<parameter=lines>\n", "5\n"]
    pieces = ["".join(part.arguments for part in reader.feed(text).calls) for text in said]
    assert pieces == ['"path": "', 'on\\"', "e", "\\ntwo", '", "lines": ', ""]
    assert [part.arguments for part in reader.feed("</parameter></function>").calls] == ["5}"]


def test_an_answer_that_was_cut_off() -> None:
    answer = written(path="abc")
    assert read(QWEN3_CODER, [answer[:20]], KNOWN) == (answer[:20], [])
    end = answer.index("bc")
    assert read(QWEN3_CODER, [answer[:end]], KNOWN) == ("", [("write", '{"path": "a')])


GRAMMATICAL = [
    ({"path": "x"}, True),
    ({"path": 'a\n"b"\n'}, True),
    ({"path": ""}, True),
    ({"path": "x", "lines": "5", "share": "0.5", "deep": "true"}, True),
    ({"path": "x", "tags": '["a", "</parameter>"]', "more": '{"x": 1}', "kind": "b c"}, True),
    ({"path": "x", "either": "null"}, True),
    ({"path": "x", "either": '"y"'}, True),
    ({"lines": "5"}, False),
    ({"path": "x", "lines": "five"}, False),
    ({"path": "x", "kind": "c"}, False),
    ({"path": "x", "town": "c"}, False),
    ({"path": "x</function>"}, False),
    ({"lines": "5", "path": "x"}, False),
]


@pytest.mark.parametrize(("arguments", "allowed"), GRAMMATICAL)
def test_what_the_grammar_allows_is_read_as_the_schema_wants(
    arguments: dict[str, str], allowed: bool
) -> None:
    text = written(**arguments)
    assert is_allowed(QWEN3_CODER, [WRITE], text, several=False) is allowed
    if allowed:
        meant = arguments_of(text)
        jsonschema.validate(meant, PARAMETERS)
        assert list(meant) == list(arguments)
        assert is_allowed(QWEN3_CODER, [WRITE], f"{text}\n{text}")
        assert not is_allowed(QWEN3_CODER, [WRITE], f"{text}\n{text}", several=False)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "minLength": 2, "maxLength": 3}, "a\n", "abcd"),
        ({"type": "string", "pattern": "^a/[0-9]+$"}, "a/12", "a/1b"),
        ({"type": "string", "pattern": "b+"}, "abbc", "ac"),
        ({"type": "string", "const": "x"}, "x", "y"),
        ({"oneOf": [{"const": "x"}, {"type": "string", "maxLength": 1}]}, "y", "yy"),
        ({"type": "integer", "minimum": 3}, "3", "2"),
    ],
)
def test_what_schemas_say_of_values(schema: dict[str, Any], good: str, bad: str) -> None:
    function = Function(name="write", parameters={"properties": {"a": schema}})
    assert is_allowed(QWEN3_CODER, [function], written(a=good))
    assert not is_allowed(QWEN3_CODER, [function], written(a=bad))


@pytest.mark.parametrize(
    "function",
    [
        Function(name="a>b"),
        Function(name="a", parameters={"anyOf": [{"properties": {}}]}),
        Function(name="a", parameters={"required": ["b"]}),
        Function(name="a", parameters={"properties": {"b\n": {}}}),
        Function(name="a", parameters={"properties": {"b": {"enum": ["</function>"]}}}),
    ],
)
def test_what_tags_cannot_hold_is_refused(function: Function) -> None:
    with pytest.raises(InvalidInput) as caught:
        is_allowed(QWEN3_CODER, [function], "")
    assert caught.value.field == "tools"
