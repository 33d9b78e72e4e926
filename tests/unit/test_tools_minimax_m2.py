"""Calls of MiniMax M2: invocations in a section, typed by the tool's schema, texts as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.minimax_m2 import MINIMAX_M2
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
        "kind": {"enum": ["a", "b c", ""]},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["path"],
    "additionalProperties": False,
}
WRITE = Function(name="write", parameters=PARAMETERS)
KNOWN = {"write": WRITE}


def invoked(**arguments: str) -> str:
    """One call as the template shows it."""
    said = "".join(
        f'<parameter name="{key}">{text}</parameter>\n' for key, text in arguments.items()
    )
    return f'<invoke name="write">\n{said}</invoke>\n'


def written(*calls: str) -> str:
    """All calls of an answer."""
    return f"<minimax:tool_call>\n{''.join(calls)}</minimax:tool_call>"


def arguments_of(answer: str) -> Any:
    content, ((name, arguments),) = read(MINIMAX_M2, [answer], KNOWN)
    assert (content, name) == ("", "write")
    assert read(MINIMAX_M2, list(answer), KNOWN) == (content, [(name, arguments)])
    return json.loads(arguments)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("path", '\na "b"\n\n  c\\n\n', '\na "b"\n\n  c\\n\n'),
        ("path", "5", "5"),
        ("path", "", ""),
        ("path", "<b> </param </minimax:tool_call>", "<b> </param </minimax:tool_call>"),
        ("lines", "12", 12),
        ("lines", "\n12\n", 12),
        ("lines", "twelve", "twelve"),
        ("deep", "true", True),
        ("tags", '["a", "</parameter>"]', ["a", "</parameter>"]),
        ("kind", "b c", "b c"),
        ("either", "null", None),
        ("either", "5", "5"),
        ("unknown", "5", "5"),
    ],
)
def test_values_are_of_the_types_of_the_schema(key: str, text: str, value: Any) -> None:
    assert arguments_of(written(invoked(**{key: text}))) == {key: value}


ANSWER = written(
    invoked(path='é "x"\n', lines="3", tags='["</parameter>", 1]'),
    invoked(path="", either="null"),
    invoked(),
)
CALLED = [{"path": 'é "x"\n', "lines": 3, "tags": ["</parameter>", 1]},
          {"path": "", "either": None}, {}]  # fmt: skip


def test_a_cut_at_every_letter() -> None:
    for cut in range(len(ANSWER)):
        content, calls = read(MINIMAX_M2, [ANSWER[:cut], ANSWER[cut:]], KNOWN)
        assert content == "" and [json.loads(arguments) for _, arguments in calls] == CALLED


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 700)))
def test_calls_in_any_pieces(cuts: list[int]) -> None:
    text = f"Let me see.\n\n{ANSWER}\nDone "
    assert read(MINIMAX_M2, in_pieces(text, cuts), KNOWN) == read(MINIMAX_M2, [text], KNOWN)
    assert read(MINIMAX_M2, [text], KNOWN)[0] == "Let me see.\nDone"


PIECES = ("<minimax:tool_call>", "</minimax:tool_call>", "<invoke name=", '"', "write", ">", "\n",
          "</invoke>", "<parameter name=", "path", "lines", "</parameter>", "</param", "5", " ",
          "<", "{", written(invoked(path="x")))  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=20), cuts=st.lists(st.integers(0, 400)))
@example(pieces=["<minimax:tool_call>", "<invoke name=", "\n", "</minimax:tool_call>"], cuts=[25])
@example(pieces=["<minimax:tool_call>", "<invoke name=", "write", ">", "<parameter name="], cuts=[])
def test_any_text_is_told_whole_however_it_comes(pieces: list[str], cuts: list[int]) -> None:
    assert_told_whole(MINIMAX_M2, pieces, cuts, KNOWN)


@pytest.mark.parametrize(
    "answer",
    [
        "<minimax:tool_call> is the mark before calls, </minimax:tool_call> the one behind them.",
        '<invoke name="write">\n<parameter name="path">x</parameter>\n</invoke>',
        "<minimax:tool_call>\n<parameter name=",
        '<minimax:tool_call>\n<invoke name="a\nb">',
        f'<minimax:tool_call><invoke name="{"a" * 500}">',
    ],
)
def test_what_is_no_call_is_content(answer: str) -> None:
    assert read(MINIMAX_M2, [answer]) == read(MINIMAX_M2, list(answer)) == (answer, [])


@pytest.mark.parametrize("forgotten", ["</parameter>\n", "</parameter>", '"'])
def test_what_models_forget(forgotten: str) -> None:
    answer = written(invoked(path="x", lines="5").replace(forgotten, ""))
    meant = arguments_of(answer)
    assert (meant["path"].rstrip("\n"), meant["lines"]) == ("x", 5)


def test_arguments_come_while_they_are_written() -> None:
    reader = CallReader(MINIMAX_M2, KNOWN)
    assert reader.feed("Yes <minimax:tool_call>\n<inv").content == "Yes"
    assert reader.feed('oke name="wri').calls == []
    (begun,) = reader.feed('te">\n<parameter name=').calls
    assert (begun.name, begun.arguments) == ("write", "{")
    said = ['"path">on', '"\n', "two</para", 'meter>\n<parameter name="lines">', "5</parameter>"]
    pieces = ["".join(part.arguments for part in reader.feed(text).calls) for text in said]
    assert pieces == ['"path": "on', '\\"\\n', "two", '", "lines": ', "5"]
    assert [part.arguments for part in reader.feed("\n</invoke>").calls] == ["}"]


def test_an_answer_that_was_cut_off() -> None:
    answer = written(invoked(path="abc"))
    assert read(MINIMAX_M2, [answer[:30]]) == (answer[:30], [])
    assert read(MINIMAX_M2, [answer[: answer.index("bc")]]) == ("", [("write", '{"path": "a')])


GRAMMATICAL = [
    ({"path": "x"}, True),
    ({"path": 'a\n"b"\n</invoke'}, True),
    ({"path": ""}, True),
    ({"path": "\nx\n"}, True),
    ({"path": "x", "lines": "5", "deep": "true"}, True),
    ({"path": "x", "tags": '["a", "</parameter>"]', "kind": "b c"}, True),
    ({"path": "x", "kind": "", "either": "null"}, True),
    ({"lines": "5"}, False),
    ({"path": "x", "lines": "five"}, False),
    ({"path": "x", "kind": "c"}, False),
    ({"path": "x", "town": "c"}, False),
    ({"path": "x</invoke>"}, False),
    ({"lines": "5", "path": "x"}, False),
]


@pytest.mark.parametrize("special", [None, False, True])
@pytest.mark.parametrize(("arguments", "allowed"), GRAMMATICAL)
def test_what_the_grammar_allows_is_read_as_the_schema_wants(
    tmp_path: Path, arguments: dict[str, str], allowed: bool, special: bool | None
) -> None:
    """Whether the marks of the section are letters or tokens of their own."""
    folder = None if special is None else tmp_path
    if folder is not None:
        tokenizer_with(folder, *MINIMAX_M2.marks, special=bool(special))
    call = invoked(**arguments)
    one, two = written(call), written(call, call)
    assert is_allowed(MINIMAX_M2, [WRITE], one, several=False, folder=folder) is allowed
    if allowed:
        meant = arguments_of(one)
        jsonschema.validate(meant, PARAMETERS)
        assert list(meant) == list(arguments)
        assert is_allowed(MINIMAX_M2, [WRITE], two, folder=folder)
        assert not is_allowed(MINIMAX_M2, [WRITE], two, several=False, folder=folder)


@pytest.mark.parametrize(
    "function",
    [
        Function(name='"ab'),
        Function(name="a>b"),
        Function(name="a", parameters={"anyOf": [{"properties": {}}]}),
        Function(name="a", parameters={"properties": {" b": {}}}),
        Function(name="a", parameters={"properties": {"b": {"enum": ["</parameter>"]}}}),
    ],
)
def test_what_tags_cannot_hold_is_refused(function: Function) -> None:
    with pytest.raises(InvalidInput) as caught:
        is_allowed(MINIMAX_M2, [function], "")
    assert caught.value.field == "tools"
