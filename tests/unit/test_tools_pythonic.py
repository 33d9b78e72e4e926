"""Calls in Python syntax, as Llama 3.2 and 4 write them: only literals as arguments."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftloop.errors import InvalidInput
from orchestrator.gateway.tools.pythonic import PYTHONIC
from orchestrator.gateway.tools.reader import CallReader
from orchestrator.gateway.tools.schemas import Function
from tests.support.calls import is_allowed, read_calls
from tests.support.marks import in_pieces

PARAMETERS: dict[str, Any] = {
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "rain": {"type": "boolean"},
        "more": {"type": "object"},
        "none": {"type": "null"},
    },
    "required": ["days"],
    "additionalProperties": False,
}
WEATHER = Function(name="weather", parameters=PARAMETERS)
KNOWN = {"weather": WEATHER, "now": Function(name="now"), "a.b-c": Function(name="a.b-c")}

ANSWER = """[weather(city="Be, (]rn", days=3), now(), a.b-c(x={'y': [1.5, None, True, -2]})]"""
CALLED = [
    ("weather", '{"city": "Be, (]rn", "days": 3}'),
    ("now", "{}"),
    ("a.b-c", '{"x": {"y": [1.5, null, true, -2]}}'),
]


def test_calls_are_read_with_a_cut_at_any_letter() -> None:
    for answer in (ANSWER, f"\n<|python_start|>{ANSWER}<|python_end|>"):
        for cut in range(len(answer)):
            assert read_calls(PYTHONIC, [answer[:cut], answer[cut:]], KNOWN) == ("", CALLED)
        assert read_calls(PYTHONIC, list(answer), KNOWN) == ("", CALLED)


PIECES = ("[", "]", "(", ")", ",", "=", "weather", "now", "a", "'", '"', "\\", "1", "{", "}", " ",
          "<|python_start|>", "<|python_end|>", "now()", "weather(days=1", "[weather(")  # fmt: skip


@settings(deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=20), cuts=st.lists(st.integers(0, 200)))
@example(pieces=["[weather(", "days=1", "1", ",", "x", ")", "]"], cuts=[3])
@example(pieces=["[", "now()", ",", "a", "]"], cuts=[])
def test_any_text_is_output_completely_in_any_pieces(pieces: list[str], cuts: list[int]) -> None:
    # How a text is cut into pieces does not change what is read.
    text = "".join(pieces)
    content, calls = read_calls(PYTHONIC, [text], KNOWN)
    assert read_calls(PYTHONIC, in_pieces(text, cuts), KNOWN) == (content, calls)
    if not calls:
        assert content == text


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("'it\\'s'", "it's"),
        ('"a\\nb"', "a\nb"),
        ('"""a, "b" (c"""', 'a, "b" (c'),
        ('"\\ud83d\\ude00\\/"', "\U0001f600/"),
        ("'\\ud83d\\ude00'", "\U0001f600"),  # Python leaves the halves apart
        ("{'\\ud83d': ['\\ude00 x']}", {"\ufffd": ["\ufffd x"]}),
        ("'\\d'", "\\d"),
        ("(1, 2)", [1, 2]),
        ("+1", 1),
        ("{}", {}),
        ('{"a": true, "b": null}', {"a": True, "b": None}),
        ("False", False),
        ("[]", []),
    ],
)
def test_literals_are_converted_to_json(written: str, value: Any) -> None:
    answer = f"[weather(city={written})]"
    ((_, arguments),) = read_calls(PYTHONIC, list(answer), KNOWN)[1]
    assert json.loads(arguments) == {"city": value}


@pytest.mark.parametrize(
    "answer",
    [
        "[weather(city=Bern)]",
        "[weather(city=open('x'))]",
        '[weather("Bern")]',
        "[weather(city=1 + 1)]",
        "[weather(city={1, 2})]",
        "[weather(city={1: 2})]",
        "[weather(city=b'x')]",
        "[weather(city=1e999)]",
        "[weather(city=f'{x}')]",
        "[weather(city=" + "-" * 5000 + "1)]",
        "[weather(city=" + "[" * 50_000 + "]" * 50_000 + ")]",  # deeper than any Python parses
        "[other(city=1)]",
        "weather(city=1)",
        "[1, 2]",
        '["weather", "now"]',
        "[weather](https://example.org)",
        "[now",
    ],
)
def test_text_without_a_valid_call_is_content(answer: str) -> None:
    assert (
        read_calls(PYTHONIC, [answer], KNOWN)
        == read_calls(PYTHONIC, list(answer), KNOWN)
        == (answer, [])
    )


def test_later_non_literal_argument_is_passed_unchanged() -> None:
    # The call has already begun when the invalid argument comes, so it is passed on as it stands.
    answer = "[weather(days=1, city=Bern)]"
    assert read_calls(PYTHONIC, [answer], KNOWN) == ("", [("weather", '{"days": 1, city=Bern}')])


def test_arguments_are_streamed_one_by_one() -> None:
    reader = CallReader(PYTHONIC, KNOWN)
    assert reader.feed('[weather(city="Be').calls == []
    (first_part,) = reader.feed('rn", da').calls
    assert (first_part.name, first_part.arguments) == ("weather", '{"city": "Bern"')
    (more,) = reader.feed("ys=3), n").calls
    assert (more.name, more.arguments) == ("", ', "days": 3}')


@pytest.mark.parametrize(
    ("call", "allowed"),
    [
        ("weather(days=1)", True),
        ('weather(city="a \\"b\\" \\\\ é", days=1, rain=True)', True),
        ('weather(days=1, more={"a": [true, null]}, none=None)', True),
        ("now()", True),
        ("weather()", False),
        ('weather(days=1, city="x")', False),
        ("weather(days=1 rain=True)", False),
        ("weather(days=1.5)", False),
        ("weather(days=1, town=2)", False),
        ("now(x=1)", False),
    ],
)
def test_calls_allowed_by_the_grammar_match_the_schema(call: str, allowed: bool) -> None:
    functions = [WEATHER, KNOWN["now"]]
    assert is_allowed(PYTHONIC, functions, f"[{call}]", several=False) is allowed
    assert is_allowed(PYTHONIC, functions, f"[{call}, now()]") is allowed
    assert not is_allowed(PYTHONIC, functions, f"[{call}, now()]", several=False)
    if allowed:
        content, ((name, arguments),) = read_calls(PYTHONIC, [f"[{call}]"], KNOWN)
        assert not content
        jsonschema.validate(json.loads(arguments), KNOWN[name].schema_of_arguments)


@pytest.mark.parametrize(
    "function",
    [Function(name="a b"), Function(name="a", parameters={"properties": {"b c": {}}})],
)
def test_functions_not_expressible_in_python_are_refused(function: Function) -> None:
    with pytest.raises(InvalidInput) as caught:
        is_allowed(PYTHONIC, [function], "")
    assert caught.value.field == "tools"


def test_long_argument_is_read_in_linear_time() -> None:
    """The event loop is shared: what was read is not copied again with each letter."""
    text = "a" * 1_000_000
    answer = f"[weather(city='{text}')]"
    pieces = in_pieces(answer, list(range(0, len(answer), 1000)))
    assert read_calls(PYTHONIC, pieces, KNOWN) == ("", [("weather", json.dumps({"city": text}))])
