"""Calls in GLM's notation, where it differs from others between tags."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.glm45 import GLM45
from orchestrator.gateway.tools.reader import CallReader
from orchestrator.gateway.tools.schemas import Function
from tests.support.calls import assert_read_equally_however_cut, is_allowed, read_calls
from tests.support.tagged import GLM_4_5, GLM_4_7, KNOWN, STYLES, WRITE

PIECES = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
          "write", "path", "lines", "\n", " ", "5", '"', "{", "}", "<", "<arg_", "</arg",
          GLM_4_5.written(path="x"))  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=20), cuts=st.lists(st.integers(0, 400)))
@example(pieces=["<tool_call>", "write", "<arg_key>", "path", "</tool_call>", "x"], cuts=[30])
@example(pieces=["<tool_call>", "write", "<arg_key>", "</arg_key>", "<arg_value>", "5"], cuts=[])
@example(pieces=["<tool_call>", "a" * 300, GLM_4_5.written(path="x")], cuts=[230])
def test_any_text_is_output_completely_in_any_pieces(pieces: list[str], cuts: list[int]) -> None:
    # How a text is cut into pieces does not change what is read.
    assert_read_equally_however_cut(GLM45, pieces, cuts, KNOWN)


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
def test_text_without_a_valid_call_is_content(answer: str) -> None:
    assert read_calls(GLM45, [answer]) == read_calls(GLM45, list(answer)) == (answer, [])


def test_spaces_between_tags_and_valueless_keys_are_accepted() -> None:
    spaced = GLM_4_7.written(path="x", lines="5").replace("><", "> <")
    assert GLM_4_7.arguments_of(spaced) == {"path": "x", "lines": 5}
    with_valueless_key = spaced.replace("</tool_call>", "<arg_key>deep</arg_key></tool_call>")
    assert GLM_4_7.arguments_of(with_valueless_key) == {"path": "x", "lines": 5}


def test_arguments_are_streamed() -> None:
    reader = CallReader(GLM45, KNOWN)
    assert reader.feed("Yes <tool_call>wri").content == "Yes"
    assert reader.feed("te\n<arg_k").calls == []
    (first_part,) = reader.feed("ey>pa").calls
    assert (first_part.name, first_part.arguments) == ("write", "{")
    texts = ["th</arg_key>\n<arg_value>on", '"\n', "two</arg", "_value>\n<arg_key>lines</arg_key>"]
    pieces = ["".join(part.arguments for part in reader.feed(text).calls) for text in texts]
    assert pieces == ['"path": "on', '\\"\\n', "two", '"']
    pieces = [part.arguments for part in reader.feed("<arg_value>5</arg_value></tool_call>").calls]
    assert pieces == [', "lines": 5}']


def test_truncated_name_is_content() -> None:
    answer = GLM_4_5.written(path="abc")
    assert read_calls(GLM45, [answer[:15]]) == (answer[:15], [])


@pytest.mark.parametrize("style", ["glm 4.5", "glm 4.7"])
def test_other_tags_within_a_value_are_text(style: str) -> None:
    text = "<b> </arg_valu </tool_call><arg_key>"
    answer = STYLES[style].written(path=text)
    assert STYLES[style].arguments_of(answer) == {"path": text}
    assert is_allowed(GLM45, [WRITE], answer)


@pytest.mark.parametrize(
    "function",
    [
        Function(name="a<b"),
        Function(name="a b"),
        Function(name="a", parameters={"properties": {" b": {}}}),
    ],
)
def test_names_invalid_in_tags_are_refused(function: Function) -> None:
    with pytest.raises(InvalidInput) as caught:
        is_allowed(GLM45, [function], "")
    assert caught.value.field == "tools"
