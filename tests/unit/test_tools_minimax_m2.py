"""Calls in MiniMax M2's notation, where it differs from others between tags."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.minimax_m2 import MINIMAX_M2
from orchestrator.gateway.tools.reader import CallReader
from orchestrator.gateway.tools.schemas import Function
from tests.support.calls import assert_read_equally_however_cut, is_allowed, read_calls
from tests.support.tagged import KNOWN, MINIMAX

PIECES = ("<minimax:tool_call>", "</minimax:tool_call>", "<invoke name=", '"', "write", ">", "\n",
          "</invoke>", "<parameter name=", "path", "lines", "</parameter>", "</param", "5", " ",
          "<", "{", MINIMAX.written(path="x"))  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=20), cuts=st.lists(st.integers(0, 400)))
@example(pieces=["<minimax:tool_call>", "<invoke name=", "\n", "</minimax:tool_call>"], cuts=[25])
@example(pieces=["<minimax:tool_call>", "<invoke name=", "write", ">", "<parameter name="], cuts=[])
def test_any_text_is_output_completely_in_any_pieces(pieces: list[str], cuts: list[int]) -> None:
    # How a text is cut into pieces does not change what is read.
    assert_read_equally_however_cut(MINIMAX_M2, pieces, cuts, KNOWN)


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
def test_text_without_a_valid_call_is_content(answer: str) -> None:
    assert read_calls(MINIMAX_M2, [answer]) == read_calls(MINIMAX_M2, list(answer)) == (answer, [])


@pytest.mark.parametrize("missing", ["</parameter>\n", "</parameter>", '"'])
def test_calls_with_missing_marks_are_read(missing: str) -> None:
    answer = MINIMAX.written(path="x", lines="5").replace(missing, "")
    arguments = MINIMAX.arguments_of(answer)
    assert (arguments["path"].rstrip("\n"), arguments["lines"]) == ("x", 5)


def test_section_marks_within_a_value_are_text() -> None:
    text = "<minimax:tool_call></minimax:tool_call>"
    assert MINIMAX.arguments_of(MINIMAX.written(path=text)) == {"path": text}


def test_arguments_are_streamed() -> None:
    reader = CallReader(MINIMAX_M2, KNOWN)
    assert reader.feed("Yes <minimax:tool_call>\n<inv").content == "Yes"
    assert reader.feed('oke name="wri').calls == []
    (first_part,) = reader.feed('te">\n<parameter name=').calls
    assert (first_part.name, first_part.arguments) == ("write", "{")
    texts = ['"path">on', '"\n', "two</para", 'meter>\n<parameter name="lines">', "5</parameter>"]
    pieces = ["".join(part.arguments for part in reader.feed(text).calls) for text in texts]
    assert pieces == ['"path": "on', '\\"\\n', "two", '", "lines": ', "5"]
    assert [part.arguments for part in reader.feed("\n</invoke>").calls] == ["}"]


@pytest.mark.parametrize("name", ["a>b", '"ab', " a"])
def test_names_invalid_in_tags_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        is_allowed(MINIMAX_M2, [Function(name=name)], "")
    assert caught.value.field == "tools"


def test_function_name_may_contain_a_quote() -> None:
    answer = '<minimax:tool_call>\n<invoke name="od"d">\n</invoke>\n</minimax:tool_call>'
    assert is_allowed(MINIMAX_M2, [Function(name='od"d')], answer)
    assert read_calls(MINIMAX_M2, [answer]) == ("", [('od"d', "{}")])
