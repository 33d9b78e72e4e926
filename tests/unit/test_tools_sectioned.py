"""Tool calls in sections, as DeepSeek and Kimi K2 write them."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.deepseek import DEEPSEEK
from orchestrator.gateway.tools.kimi_k2 import KIMI_K2
from orchestrator.gateway.tools.reader import CallReader
from orchestrator.gateway.tools.schemas import Function
from orchestrator.gateway.tools.sectioned import Sectioned
from tests.support.calls import assert_read_equally_however_cut, is_allowed, read_calls
from tests.support.marks import in_pieces

ONE, TWO = ("weather", '{"city": "Be } rn", "days": {"a": 1}}'), ("say", '{"text": "```"}')


def fenced_call(name: str, arguments: str) -> str:
    return (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
        "<｜tool▁call▁end｜>"
    )


def plain_call(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


def numbered_call(name: str, arguments: str, number: int = 0) -> str:
    return (
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{arguments}"
        "<|tool_call_end|>"
    )


def call_section(notation: Sectioned, *calls: str, between: str = "") -> str:
    return f"{notation.section}{between.join(calls)}{notation.end}"


FORMS = [
    (DEEPSEEK, call_section(DEEPSEEK, fenced_call(*ONE), fenced_call(*TWO), between="\n")),
    (DEEPSEEK, call_section(DEEPSEEK, plain_call(*ONE), plain_call(*TWO))),
    (KIMI_K2, call_section(KIMI_K2, numbered_call(*ONE), numbered_call(*TWO, number=12))),
    # With line ends, as some models write them, and without parts that models forget.
    (
        DEEPSEEK,
        call_section(DEEPSEEK, "", fenced_call(*ONE), fenced_call(*TWO), "", between="\n\n"),
    ),
    (
        DEEPSEEK,
        call_section(DEEPSEEK, plain_call(*ONE), "", between="\n")
        + call_section(DEEPSEEK, plain_call(*TWO)),
    ),
    (DEEPSEEK, fenced_call(*ONE) + fenced_call(*TWO)),
    (
        DEEPSEEK,
        call_section(DEEPSEEK, plain_call(*ONE).removeprefix(DEEPSEEK.begin), plain_call(*TWO)),
    ),
    (
        KIMI_K2,
        call_section(KIMI_K2, "", numbered_call(*ONE), numbered_call(*TWO), "", between="\n"),
    ),
    (
        KIMI_K2,
        call_section(KIMI_K2, numbered_call(*ONE), numbered_call(*TWO)).replace("functions.", ""),
    ),
    (KIMI_K2, call_section(KIMI_K2, numbered_call(*ONE), numbered_call(*TWO)).replace(":0<", "<")),
    (KIMI_K2, numbered_call(*ONE) + numbered_call(*TWO)),
]


@pytest.mark.parametrize(("notation", "answer"), FORMS)
@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 600)))
def test_calls_are_read_in_any_pieces(notation: Sectioned, answer: str, cuts: list[int]) -> None:
    text = f"Let me see.\n\n{answer}"
    assert read_calls(notation, in_pieces(text, cuts)) == ("Let me see.", [ONE, TWO])


@pytest.mark.parametrize(("notation", "answer"), FORMS)
def test_calls_are_read_letter_by_letter(notation: Sectioned, answer: str) -> None:
    for cut in range(len(answer)):
        assert read_calls(notation, [answer[:cut], answer[cut:]]) == ("", [ONE, TWO])
    assert read_calls(notation, list(answer)) == ("", [ONE, TWO])


@pytest.mark.parametrize(("notation", "answer"), FORMS[:3])
def test_text_after_a_section_is_content(notation: Sectioned, answer: str) -> None:
    assert read_calls(notation, list(f"{answer}\nDone")) == ("\nDone", [ONE, TWO])


def test_arguments_are_streamed() -> None:
    for notation, head in (
        (DEEPSEEK, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"),
        (DEEPSEEK, "<｜tool▁call▁begin｜>weather<｜tool▁sep｜>"),
        (KIMI_K2, "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"),
    ):
        reader = CallReader(notation)
        assert reader.feed(notation.section + head).calls == []
        (first_part,) = reader.feed('{"ci').calls
        assert (first_part.name, first_part.arguments) == ("weather", '{"ci')
        (more,) = reader.feed('ty": "B').calls
        assert (more.name, more.arguments) == ("", 'ty": "B')


PIECES = (
    *DEEPSEEK.marks, *KIMI_K2.marks, "functions.", "function", ":0", "a", "b1", " ", "{", "}", '"',
    "```json", "```", "\n", "<", "<|tool", plain_call("f", "{}"), numbered_call("f", "{}"),
)  # fmt: skip


@pytest.mark.parametrize("notation", [DEEPSEEK, KIMI_K2])
@settings(deadline=None, max_examples=300)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=20), cuts=st.lists(st.integers(0, 600)))
@example(pieces=[DEEPSEEK.begin, "a", "<｜tool▁sep｜>", "{", "```json", "{", "}"], cuts=[22, 31])
@example(pieces=[KIMI_K2.begin, "a", KIMI_K2.call_end, numbered_call("f", "{}")], cuts=[20])
@example(pieces=[DEEPSEEK.begin, "a" * 300, " ", plain_call("f", "{}"), " ", "a"], cuts=[280, 281])
def test_any_text_is_output_completely_in_any_pieces(
    notation: Sectioned, pieces: list[str], cuts: list[int]
) -> None:
    # How a text is cut into pieces does not change what is read.
    assert_read_equally_however_cut(notation, pieces, cuts)


@pytest.mark.parametrize(
    ("notation", "invalid"),
    [
        (DEEPSEEK, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>[1]<｜tool▁call▁end｜>"),
        (DEEPSEEK, "<｜tool▁call▁begin｜>a name<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
        (KIMI_K2, "<|tool_call_begin|><|tool_call_argument_begin|>{}<|tool_call_end|>"),
        (KIMI_K2, "<|tool_call_begin|>" + "a" * 500),
    ],
)
def test_invalid_call_is_content_and_later_calls_are_read(
    notation: Sectioned, invalid: str
) -> None:
    # Text that only begins like a call is content, and a real call after it is still found.
    assert read_calls(notation, [invalid]) == read_calls(notation, list(invalid)) == (invalid, [])
    answer = invalid + (plain_call if notation is DEEPSEEK else numbered_call)(*ONE)
    assert read_calls(notation, [answer]) == read_calls(notation, list(answer)) == (invalid, [ONE])


def test_truncated_answers_are_read() -> None:
    for notation, first in ((DEEPSEEK, fenced_call(*ONE)), (KIMI_K2, numbered_call(*ONE))):
        for cut in range(len(notation.begin) + 1, first.index("{")):
            truncated = notation.section + first[:cut]
            assert read_calls(notation, [truncated]) == (truncated, [])
            more = "\n" + first[:cut]
            unclosed = call_section(notation, first)[: -len(notation.end)]
            assert read_calls(notation, [unclosed + more]) == (more, [ONE])
        end = first.index(": {")
        assert read_calls(notation, [notation.section + first[:end]]) == (
            "",
            [(ONE[0], ONE[1][:26])],
        )


def test_kimi_call_ids_are_kept_but_never_repeated() -> None:
    # Kimi's own ids are kept; a repeated one is replaced by a new id.
    def ids(*numbers: int) -> list[str]:
        calls = (numbered_call(*ONE, number=number) for number in numbers)
        parts = CallReader(KIMI_K2).feed(call_section(KIMI_K2, *calls)).calls
        return [part.call_id for part in parts if part.name]

    assert ids(3, 4) == ["functions.weather:3", "functions.weather:4"]
    first, second = ids(0, 0)
    assert first == "functions.weather:0" and second.startswith("call_")


FUNCTIONS = [
    Function(name="weather", parameters={
        "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": False}),
    Function(name="a:1"),
]  # fmt: skip
CITY, TOWN, EMPTY = ("weather", '{"city": "<｜"}'), ("weather", '{"town": "x"}'), ("a:1", "{}")


@pytest.mark.parametrize(
    ("notation", "text", "calls"),
    [
        (DEEPSEEK, call_section(DEEPSEEK, fenced_call(*CITY)), [CITY]),
        (
            DEEPSEEK,
            call_section(DEEPSEEK, fenced_call(*CITY), fenced_call(*EMPTY), between="\n"),
            [CITY, EMPTY],
        ),
        (DEEPSEEK, call_section(DEEPSEEK, plain_call(*EMPTY)), [EMPTY]),
        (DEEPSEEK, call_section(DEEPSEEK, plain_call(*EMPTY), plain_call(*CITY)), [EMPTY, CITY]),
        (DEEPSEEK, call_section(DEEPSEEK, plain_call(*TOWN)), []),
        (DEEPSEEK, call_section(DEEPSEEK, fenced_call(*TOWN)), []),
        (DEEPSEEK, call_section(DEEPSEEK, plain_call(*CITY), fenced_call(*CITY)), []),
        (DEEPSEEK, call_section(DEEPSEEK), []),
        (DEEPSEEK, plain_call(*CITY), []),
        (KIMI_K2, call_section(KIMI_K2, numbered_call(*CITY)), [CITY]),
        (
            KIMI_K2,
            call_section(KIMI_K2, numbered_call(*EMPTY, number=7), numbered_call(*CITY)),
            [EMPTY, CITY],
        ),
        (KIMI_K2, call_section(KIMI_K2, numbered_call(*TOWN)), []),
        (KIMI_K2, call_section(KIMI_K2, numbered_call(*CITY).replace(":0", "")), []),
        (KIMI_K2, call_section(KIMI_K2, numbered_call(*CITY).replace(":0", ":12345")), []),
    ],
)
def test_texts_allowed_by_the_grammar_are_read_as_calls(
    notation: Sectioned, text: str, calls: list[tuple[str, str]]
) -> None:
    # Every call that the grammar allows can be read, and arguments follow the schema.
    assert is_allowed(notation, FUNCTIONS, text) is bool(calls)
    assert is_allowed(notation, FUNCTIONS, text, several=False) is (len(calls) == 1)
    if calls:
        assert read_calls(notation, [text]) == ("", calls)
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)


@pytest.mark.parametrize("notation", [DEEPSEEK, KIMI_K2])
@pytest.mark.parametrize("name", ["a name", "a<b", "a{b", "a`b"])
def test_function_names_invalid_in_headers_are_refused(notation: Sectioned, name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        is_allowed(notation, [Function(name=name)], "")
    assert caught.value.field == "tools"
