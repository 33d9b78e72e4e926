"""Answers in channels, as gpt-oss writes them: reasoning, content and calls, in any pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from orchestrator.gateway.chat_reader import Reading
from orchestrator.gateway.formats import ChatFormat
from orchestrator.gateway.harmony import ALL
from orchestrator.gateway.reasoning.channel_thought import ChannelThought, channels_after
from orchestrator.gateway.tools.harmony import HARMONY
from orchestrator.gateway.tools.offer import Offer, make_offer
from orchestrator.gateway.tools.schemas import Function, Tool
from tests.support.calls import Calls, is_allowed, join_calls, matches_grammar
from tests.support.marks import in_pieces, tokens_with

WEATHER = Function(name="weather", parameters={
    "properties": {"city": {"type": "string"}}, "required": ["city"]})  # fmt: skip
OFFER = Offer(HARMONY, {"weather": WEATHER}, None, frozenset())

ANALYSIS = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>{}<|return|>"
CALL = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{}<|call|>"
TURNED = " to=functions.weather<|channel|>commentary json<|message|>{}<|call|>"
BERN = '{"city": "Bern"}'


def read_answer(
    pieces: list[str], *, answer_start: str = "", offer: Offer | None = OFFER
) -> tuple[str, str, Calls]:
    """Reasoning, content and calls of an answer that arrives in these pieces."""
    reader = Reading(ChannelThought(answer_start, {}, frozenset()), offer).reader()
    parts = [*(reader.feed([piece], ends=False) for piece in pieces), reader.feed([], ends=True)]
    reasoning = "".join(part.reasoning for part in parts)
    content = "".join(part.content for part in parts)
    return reasoning, content, join_calls([call for part in parts for call in part.calls])


@pytest.mark.parametrize(
    ("answer", "reasoning", "content", "calls"),
    [
        (ANALYSIS.format("Hm.\n") + FINAL.format("Yes.\n"), "Hm.\n", "Yes.\n", 0),
        (FINAL.format("Yes."), "", "Yes.", 0),
        (ANALYSIS.format("Hm.") * 2 + FINAL.format("Yes."), "Hm.\nHm.", "Yes.", 0),
        (ANALYSIS.format("Hm.") + CALL.format(BERN), "Hm.", "", 1),
        (ANALYSIS.format("Hm.") + TURNED.format(BERN), "Hm.", "", 1),
        (CALL.format(BERN) + "<|start|>assistant" + TURNED.format(BERN), "", "", 2),
        ("<|channel|>commentary<|message|>So.<|end|><|start|>assistant" + CALL.format(BERN),
         "", "So.", 1),
        ("<|channel|>commentary<|message|>So.<|end|><|start|>assistant" + FINAL.format("Yes."),
         "", "So.\nYes.", 0),
        ("<|channel|>analysis to=functions.weather<|message|>" + BERN, "", "", 1),
        ("<|channel|>analysis to=python code<|message|>1 + 1<|call|>", "1 + 1", "", 0),
        ("Yes, <b>.", "", "Yes, <b>.", 0),
        ("  to be", "", "  to be", 0),
        ("<|channel|>analysis<|message|>Hm", "Hm", "", 0),
        ("<|channel|>ana", "", "", 0),
        ("<|channel|>analysis<|message|>Hm<|end|><|start|>assist", "Hm", "", 0),
    ],
)  # fmt: skip
def test_channels_are_parsed_at_any_cut(
    answer: str, reasoning: str, content: str, calls: int
) -> None:
    expected = (reasoning, content, [("weather", BERN)] * calls)
    assert read_answer([answer]) == read_answer(list(answer)) == expected
    for cut in range(len(answer)):
        assert read_answer([answer[:cut], answer[cut:]]) == expected


PIECES = (*ALL, "analysis", "final", "commentary", " to=functions.", "weather", "x", " ", "{", "}",
          "assistant", "<|", CALL.format(BERN), ANALYSIS.format("Hm"))  # fmt: skip


@settings(deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=16), cuts=st.lists(st.integers(0, 400)))
@example(pieces=["<|channel|>", " to=functions.", "weather", "<|message|>", "x"], cuts=[50])
def test_result_does_not_depend_on_pieces(pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    assert read_answer(in_pieces(text, cuts)) == read_answer([text])


@pytest.mark.parametrize("arguments", ["", "{}", " {} "])
def test_call_without_arguments_has_an_empty_object(arguments: str) -> None:
    assert read_answer(list(CALL.format(arguments))) == ("", "", [("weather", "{}")])


def test_unparsable_call_is_content() -> None:
    answer = "<|channel|>commentary to=functions.weather<|message|>Bern<|call|>"
    assert read_answer([answer]) == read_answer(list(answer)) == ("", answer, [])
    call = CALL.format(BERN)
    assert read_answer([call], offer=None)[2] == [] and BERN in read_answer([call], offer=None)[1]


def test_arguments_are_streamed() -> None:
    reader = Reading(ChannelThought("", {}, frozenset()), OFFER).reader()
    assert reader.feed(["<|channel|>", "analysis", "<|message|>", "H"], ends=False).reasoning == "H"
    assert reader.feed(["m<|end|><|start|>assistant"], ends=False).reasoning == "m"
    head = CALL.split("{}")[0]
    (first_part,) = reader.feed([head, '{"ci'], ends=False).calls
    assert (first_part.name, first_part.arguments) == ("weather", '{"ci')
    (more,) = reader.feed(['ty": "B'], ends=False).calls
    assert (more.name, more.arguments) == ("", 'ty": "B')


def test_reasoning_tokens_exclude_headers() -> None:
    """Headers and the token that ends an answer do not count."""
    form = ChatFormat(Reading(ChannelThought("", {}, frozenset())))
    begin = ["<|channel|>", "analysis", "<|message|>"]
    end = ["<|end|>", "<|start|>", "assistant"]
    texts = [*begin, "Hm", ".", *end, *begin, "So", *end, "<|channel|>", "final", "<|message|>"]
    form.whole(0, [*texts, "Yes", ""], None, "stop")
    assert form.reasoning_tokens() == 3
    opened = ChatFormat(Reading(ChannelThought("".join(begin), {}, frozenset())))
    opened.whole(0, ["Hm", ".", *end], None, "length")
    assert opened.reasoning_tokens() == 2


@pytest.mark.parametrize(
    ("prompt", "answer", "expected"),
    [
        ("<|start|>assistant", FINAL.format("Yes"), ("", "Yes", [])),
        ("<|start|>assistant<|channel|>analysis<|message|>", "Hm<|end|>", ("Hm", "", [])),
        ("<|start|>assistant<|channel|>final<|message|>I ", "say", ("", "say", [])),
        ("no marks", "Yes", ("", "Yes", [])),
    ],
)
def test_channel_opened_by_the_prompt_is_continued(
    prompt: str, answer: str, expected: tuple[str, str, Calls]
) -> None:
    tokenizer = tokens_with(*ALL, special=True).tokenizer
    channels = channels_after(f"<|start|>assistant{FINAL.format('Hi')}{prompt}", tokenizer)
    if prompt != "no marks":
        assert read_answer([answer], answer_start=channels.answer_start) == expected
    assert len(channels.named_tokens) == len(ALL)
    assert (
        read_answer([answer], answer_start=channels_after(prompt, tokenizer).answer_start)
        == expected
    )


DIGIT = Grammar("regex", "[0-9]")


@pytest.mark.parametrize("special", [None, False, True])
def test_response_format_applies_to_the_final_message(special: bool | None) -> None:
    # A response format applies to the final channel alone; the reasoning before it is free.
    tokens = tokens_with(*ALL, special=special)
    tokenizer = tokens.tokenizer

    def allowed(answer: str, opening: str = "") -> bool:
        grammar = channels_after(f"<|start|>assistant{opening}", tokenizer).before(
            DIGIT, calls=False
        )
        assert grammar is not None
        return matches_grammar(grammar, answer, tokens)

    good, bad = (f"<|channel|>final<|message|>{text}" for text in ("7", "x"))
    thought = ANALYSIS.format("Hm, 8.\n\nOr 7?")
    for before in ("", thought, thought * 2):
        assert allowed(before + good) and not allowed(before + bad)
    assert not allowed("7") and not allowed(thought)
    opened = "<|channel|>analysis<|message|>"
    assert allowed(thought.removeprefix(opened) + good, opened) and not allowed(good, opened)
    assert allowed("7", "<|channel|>final<|message|>")


@pytest.mark.parametrize("special", [None, False, True])
def test_required_call_may_follow_reasoning(special: bool | None) -> None:
    tokens = tokens_with(*ALL, special=special)
    tokenizer = tokens.tokenizer
    tools = [Tool(type="function", function=WEATHER)]
    offer = make_offer(HARMONY, tools, "required", tokenizer, parallel=True)
    reading = Reading(channels_after("<|start|>assistant", tokenizer), offer)
    grammar = reading.grammar(None)
    assert grammar is not None and len(reading.named_tokens) == (len(ALL) if special else 0)
    call = CALL.removesuffix("<|call|>").format(BERN)
    thought = ANALYSIS.format("Hm.")
    for answer in (call, thought + call, call.replace(" <|constrain|>json", "")):
        assert matches_grammar(grammar, answer, tokens)
        parts = reading.reader().feed([answer], ends=True)
        assert parts.content == "" and json.loads(parts.calls[0].arguments) == {"city": "Bern"}
    assert not matches_grammar(grammar, thought + FINAL.format("x"), tokens)
    assert not matches_grammar(grammar, call.replace("city", "town"), tokens)


def test_function_names_invalid_in_headers_are_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        is_allowed(HARMONY, [Function(name="a b")], "")
    assert caught.value.field == "tools"
