"""Calls of newer Mistral models: a name, optionally an id, then arguments."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.gateway.tools.mistral import MISTRAL
from orchestrator.gateway.tools.reader import CallReader
from orchestrator.gateway.tools.schemas import Function
from tests.support.calls import is_allowed, read_calls
from tests.support.marks import in_pieces, tokens_with

ONE, TWO = ("weather", '{"city": "Be } rn", "days": {"a": 1}}'), ("say", '{"text": "[ARGS]"}')
CALLS = [
    "[TOOL_CALLS]{}[ARGS]{}",
    "[TOOL_CALLS]{}[CALL_ID]a1b2c3d4e[ARGS]{}",
    "[TOOL_CALLS]{}{}",
    "[TOOL_CALLS] {}[ARGS] {}",
]


@pytest.mark.parametrize("form", CALLS)
@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 300)))
def test_calls_are_read_in_any_pieces(form: str, cuts: list[int]) -> None:
    answer = f"Let me see. {form.format(*ONE)}{form.format(*TWO)}"
    assert read_calls(MISTRAL, in_pieces(answer, cuts)) == ("Let me see.", [ONE, TWO])


def test_calls_are_read_letter_by_letter() -> None:
    answer = "".join(form.format(*ONE) for form in CALLS)
    for cut in range(len(answer)):
        assert read_calls(MISTRAL, [answer[:cut], answer[cut:]]) == ("", [ONE] * len(CALLS))
    assert read_calls(MISTRAL, list(answer)) == ("", [ONE] * len(CALLS))


def test_arguments_are_streamed() -> None:
    reader = CallReader(MISTRAL)
    assert reader.feed("[TOOL_CALLS]weather[CALL_ID]abc").calls == []
    (first_part,) = reader.feed('[ARGS]{"ci').calls
    assert (first_part.name, first_part.arguments) == ("weather", '{"ci')
    (more,) = reader.feed('ty": "B').calls
    assert (more.name, more.arguments) == ("", 'ty": "B')


PIECES = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "a", "b1", " ", "{", "}", '"', "[", "]", ",", "\n",
          '{"name": "f", "arguments": {}}', "[TOOL")  # fmt: skip


@settings(deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=20), cuts=st.lists(st.integers(0, 300)))
@example(pieces=["[TOOL_CALLS]", "a", " ", "b1", "{", "}"], cuts=[13, 14])
@example(pieces=["[TOOL_CALLS]", "a", "[ARGS]", "{", "}", "[TOOL_CALLS]", " ", "b1"], cuts=[])
def test_any_text_is_output_completely_in_any_pieces(pieces: list[str], cuts: list[int]) -> None:
    # How a text is cut into pieces does not change what is read.
    text = "".join(pieces)
    content, calls = read_calls(MISTRAL, [text])
    assert read_calls(MISTRAL, in_pieces(text, cuts)) == (content, calls)
    if not calls:
        assert content == text


@pytest.mark.parametrize(
    "answer",
    ["[TOOL_CALLS] none, I think {x}", "[TOOL_CALLS]a[FOO]x {}", "[TOOL_CALLS]" + "a" * 500 + "{}"],
)
def test_text_without_a_valid_call_is_content(answer: str) -> None:
    assert read_calls(MISTRAL, [answer]) == read_calls(MISTRAL, list(answer)) == (answer, [])


FUNCTIONS = [
    Function(name="weather", parameters={
        "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": False}),
    Function(name="a name"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('[TOOL_CALLS]weather[ARGS]{"city": "x"}', True),
        ('[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "x"}', True),
        ('[TOOL_CALLS]weather[ARGS]{"city": "x"}' * 2, True),
        ('[TOOL_CALLS][{"name": "a name", "arguments": {}}]', True),
        ("[TOOL_CALLS]a name[ARGS]{}", False),
        ('[TOOL_CALLS]weather[ARGS]{"town": "x"}', False),
        ('[TOOL_CALLS]weather[ARGS]{"city": "x"}, {}', False),
    ],
)
def test_grammar_allows_both_forms_of_a_call(text: str, allowed: bool) -> None:
    # A list of calls after one mark, or a mark before every call; names may limit the choice.
    assert is_allowed(MISTRAL, FUNCTIONS, text) is allowed
    single = allowed and text.count("TOOL_CALLS") == 1
    assert is_allowed(MISTRAL, FUNCTIONS, text, several=False) is single
    if allowed:
        content, calls = read_calls(MISTRAL, [text])
        assert not content and len(calls) == text.count("TOOL_CALLS")


@pytest.mark.parametrize("special", [False, True])
def test_marks_within_a_call_may_be_separate_tokens(special: bool) -> None:
    # The marks may be tokens of their own, special ones or not; the grammar allows the same calls.
    tokens = tokens_with(*MISTRAL.marks, special=special)
    text = '[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "x"}'
    assert is_allowed(MISTRAL, FUNCTIONS, text * 2, tokens=tokens)
    assert not is_allowed(MISTRAL, FUNCTIONS, text.replace("city", "town"), tokens=tokens)
