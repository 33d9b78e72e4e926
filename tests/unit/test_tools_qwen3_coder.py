"""Calls in Qwen3-Coder's notation, where it differs from others between tags."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.qwen3_coder import QWEN3_CODER
from orchestrator.gateway.tools.reader import CallReader
from orchestrator.gateway.tools.schemas import Function
from tests.support.calls import assert_read_equally_however_cut, is_allowed, read_calls
from tests.support.tagged import KNOWN, QWEN

PIECES = ("<tool_call>", "</tool_call>", "<function=", "write", ">", "\n", "</function>", "f",
          "<parameter=", "path>", "lines>", "</parameter>", "</param", "5", '"', "{", " ", "<",
          QWEN.written(path="x"))  # fmt: skip


@settings(deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=20), cuts=st.lists(st.integers(0, 400)))
@example(pieces=["<function=", "\n", "<tool_call>", "f"], cuts=[])
@example(pieces=["<function=", "f", ">", "<parameter=", "\n", "path>", "</function>"], cuts=[20])
def test_any_text_is_output_completely_in_any_pieces(pieces: list[str], cuts: list[int]) -> None:
    # How a text is cut into pieces does not change what is read.
    assert_read_equally_however_cut(QWEN3_CODER, pieces, cuts, KNOWN)


@pytest.mark.parametrize(
    "answer",
    [
        "<function=write>\n<parameter=path>\nx\n</parameter>\n</function>",
        "<tool_call>\n<function=write>\n<parameter=path>\nx</function>\n</tool_call>",
        "<tool_call><function=write><parameter=path>x</parameter></function></tool_call>",
        "<tool_call>\n<function=write>\n<parameter=path>\nx\n</parameter>\n</tool_call>",
    ],
)
def test_calls_with_missing_marks_are_read(answer: str) -> None:
    """Missing: the tag before a call, the end tags of a value or of the call, or line ends."""
    assert QWEN.arguments_of(answer) == {"path": "x"}


def test_missing_end_tag_before_another_argument() -> None:
    answer = "<function=write>\n<parameter=path>\nx\n<parameter=lines>\n5\n</parameter></function>"
    assert QWEN.arguments_of(answer) == {"path": "x", "lines": 5}


def test_arguments_are_streamed() -> None:
    reader = CallReader(QWEN3_CODER, KNOWN)
    assert reader.feed("Yes <tool_call>\n<function=wri").content == "Yes"
    (first_part,) = reader.feed("te>\n<par").calls
    assert (first_part.name, first_part.arguments) == ("write", "{")
    texts = ["ameter=path>\n", 'on"', "e\n", "two\n</para", "meter>\n<parameter=lines>\n", "5\n"]
    pieces = ["".join(part.arguments for part in reader.feed(text).calls) for text in texts]
    assert pieces == ['"path": "', 'on\\"', "e", "\\ntwo", '", "lines": ', ""]
    assert [part.arguments for part in reader.feed("</parameter></function>").calls] == ["5}"]


def test_truncated_tag_before_a_call_is_content() -> None:
    answer = QWEN.written(path="abc")
    assert read_calls(QWEN3_CODER, [answer[:20]], KNOWN) == (answer[:20], [])


def test_unterminated_json_value_is_text() -> None:
    assert QWEN.arguments_of(QWEN.written(more='{"x": "')) == {"more": '{"x": "'}


def test_grammar_excludes_the_end_tag_within_a_value() -> None:
    assert not is_allowed(QWEN3_CODER, [KNOWN["write"]], QWEN.written(path="x</function>"))


@pytest.mark.parametrize(
    "function",
    [
        Function(name="a>b"),
        Function(name="a", parameters={"properties": {"b\n": {}}}),
        Function(name="a", parameters={"properties": {"b": {"enum": ["</function>"]}}}),
    ],
)
def test_names_invalid_in_tags_are_refused(function: Function) -> None:
    with pytest.raises(InvalidInput) as caught:
        is_allowed(QWEN3_CODER, [function], "")
    assert caught.value.field == "tools"
