"""Reasoning before answers: recognised in any pieces, and before any grammar of the answer."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llguidance import LLMatcher

from draftloop.config import bundled_model
from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.grammars.text import grammar_text
from draftloop.runtime.grammars import Grammars
from orchestrator.gateway.chat_reader import Reading
from orchestrator.gateway.formats import ChatFormat
from orchestrator.gateway.messages import for_template
from orchestrator.gateway.reasoning.marks import MARKS, MISTRAL, SEED, THINK, Marks, detect_marks
from orchestrator.gateway.reasoning.reader import ReasoningReader
from orchestrator.gateway.reasoning.thought import Thought, thought_after
from orchestrator.gateway.tools.hermes import HERMES
from orchestrator.gateway.tools.offer import Offer
from orchestrator.tokenizer import Tokenizer
from tests.support.marks import chat_message, in_pieces, tokens_with

OWN = Tokenizer(bundled_model("verifier"))


def read_answer(pieces: list[str], *, opened: bool, marks: Marks = THINK) -> tuple[str, str]:
    """Reasoning and content of an answer that arrives in these pieces."""
    reader = ReasoningReader(marks, opened=opened)
    parts = [*(reader.feed(piece) for piece in pieces), reader.finish()]
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts)


@pytest.mark.parametrize(
    ("opened", "answer", "reasoning", "content"),
    [
        (False, "<think>\nHm.\n\nSo.\n</think>\n\nYes.\n", "Hm.\n\nSo.", "Yes.\n"),
        (False, "\n <think>Hm.</think>Yes.", "Hm.", "Yes."),
        (False, "Yes. <think>no</think>", "", "Yes. <think>no</think>"),
        (False, "\n\nYes.", "", "\n\nYes."),
        (False, "<think>\n\n</think>\n\nYes.", "", "Yes."),
        (False, "<thin", "", "<thin"),
        (False, " \n", "", " \n"),
        (False, "<think>never ends\n", "never ends", ""),
        (True, "\nHm. </thin </think> Yes </think>.", "Hm. </thin ", " Yes </think>."),
        (True, "Hm.</thi", "Hm.</thi", ""),
        (True, "<think>Hm.</think>Yes.", "<think>Hm.", "Yes."),
        (True, "\n</think>\n", "", ""),
    ],
)
def test_reasoning_is_split_from_content(
    opened: bool, answer: str, reasoning: str, content: str
) -> None:
    assert read_answer([answer], opened=opened) == (reasoning, content)
    assert read_answer(list(answer), opened=opened) == (reasoning, content)


PIECES = ("<think>", "</think>", "<think", "</", "think>", "<", ">", "\n", " ", "x", "")


@given(st.booleans(), st.lists(st.sampled_from(PIECES), max_size=12), st.lists(st.integers(0, 99)))
@example(True, ["x", "\n", "\n", "</", "\n"], [1, 2, 3, 5])
def test_result_does_not_depend_on_pieces(opened: bool, pieces: list[str], cuts: list[int]) -> None:
    """The result is the same in any pieces; only marks and line ends around them are dropped."""
    text = "".join(pieces)
    reasoning, content = read_answer([text], opened=opened)
    assert read_answer(in_pieces(text, cuts), opened=opened) == (reasoning, content)
    inside, begin, rest = opened, "", text
    if not opened and text.lstrip().startswith(THINK.begin):
        inside, begin, rest = True, THINK.begin, text.lstrip().removeprefix(THINK.begin)
    if not inside:
        assert (reasoning, content) == ("", text)
    before, _, after = rest.partition(THINK.end)
    if inside:
        assert (reasoning, content) == (before.strip("\n"), after.lstrip("\n")), begin


def test_reasoning_is_streamed() -> None:
    reader = ReasoningReader(THINK, opened=False)
    answers = [reader.feed(text) for text in ("<th", "ink>a", " b\n", "c", "\n</think>", "\n", "d")]
    texts = [(parts.reasoning, parts.content) for parts in answers]
    assert texts == [("", ""), ("a", ""), (" b", ""), ("\nc", ""), ("", ""), ("", ""), ("", "d")]


@pytest.mark.parametrize(
    ("template", "marks"),
    [
        ("{% if x %}<think>\n\n</think>{% endif %}", THINK),
        ("{{ content.split('</think>')[-1] }}", THINK),
        ("... [THINK]{{ x }}[/THINK]", MISTRAL),
        ("<seed:think>", SEED),
        ("{{ messages[0].content }} I think", None),
    ],
)
def test_reasoning_marks_are_detected_in_templates(template: str, marks: Marks | None) -> None:
    assert detect_marks(template) is marks


@pytest.mark.parametrize(
    ("prompt", "opened", "closed"),
    [
        ("<|assistant|>\n", False, False),
        ("<|assistant|>\n<think>\n", True, False),
        ("<|assistant|>\n<think>\n\n</think>\n\n", False, True),
        ("<think>x</think>\n<|assistant|>", False, False),
    ],
)
def test_reasoning_opened_by_the_prompt_is_recognized(
    prompt: str, opened: bool, closed: bool
) -> None:
    thought = thought_after(prompt, THINK, OWN)
    assert (thought.opened, thought.closed) == (opened, closed)


FORMS = [
    (Grammar("json_schema", '{"type": "object"}'), '{"a": 1}', "yes"),
    (Grammar("regex", "[ab]{3}"), "aba", "ab"),
    (Grammar("choice", '[" yes", "no"]'), " yes", "yes"),
    (Grammar("grammar", 'start: "x"+ "y"'), "xxy", "xx"),
    (Grammar("grammar", 'root ::= "x"+ "y"'), "xxy", "xx"),
    (Grammar("grammar", '{"grammars": [{"lark_grammar": "start: \\"a\\""}]}'), "a", "b"),
]


@pytest.mark.parametrize("special", [None, False, True])
@pytest.mark.parametrize("marks", MARKS.values(), ids=MARKS)
@pytest.mark.parametrize(("response_format", "good", "bad"), FORMS)
def test_structured_answer_may_follow_reasoning(
    response_format: Grammar, good: str, bad: str, marks: Marks, special: bool | None
) -> None:
    """Marks may be letters, tokens with letters, or special tokens, which have none."""
    folder, tokenizer, _ = tokens_with(marks.begin, marks.end, special=special)
    grammars = Grammars(folder, 4098, [0])

    def allowed(text: str, prompt: str) -> bool:
        thought = thought_after(prompt, marks, tokenizer)
        grammar = thought.before(response_format)
        assert grammar is not None and len(thought.named_tokens) == (2 if special else 0)
        grammars.follow(grammar)
        matcher = LLMatcher(grammars.vocabulary.tokenizer, grammar_text(grammar))
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        return matcher.validate_tokens([*token_ids, 0]) == len(token_ids) + 1

    reasoning = f"\nHm < {bad} {{ </\n{marks.end}"
    assert allowed(f"{reasoning}\n\n{good}", marks.begin) and allowed(reasoning + good, marks.begin)
    assert not allowed(f"{reasoning}\n\n{bad}", marks.begin) and not allowed(good, marks.begin)
    assert (
        allowed(marks.begin + reasoning + good, "") and allowed(good, "") and not allowed(bad, "")
    )
    closed = f"{marks.begin}\n\n{marks.end}\n\n"
    assert allowed(good, closed) and not allowed(marks.begin + reasoning + good, closed)


def test_no_grammar_without_a_response_format() -> None:
    assert thought_after("<think>", THINK, OWN).before(None) is None


ANSWER = (
    '<think>\nHm.\n</think>\n\nLet me see.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>'
)


def new_reading(*, hidden: bool = False) -> Reading:
    thought = Thought(THINK, False, False, {}, frozenset())
    return Reading(thought, Offer(HERMES, {}, None, frozenset()), hidden)


def test_reasoning_and_content_before_calls() -> None:
    message = ChatFormat(new_reading()).whole(0, ANSWER, None, "stop")["message"]
    assert message["reasoning"] == message["reasoning_content"] == "Hm."
    assert message["content"] == "Let me see."
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    form = ChatFormat(new_reading())
    ends: list[str | None] = [None] * (len(ANSWER) - 1)
    deltas = [
        form.delta(0, letter, None, end)["delta"]
        for letter, end in zip(ANSWER, [*ends, "stop"], strict=True)
    ]
    for name, expected in (("reasoning", "Hm."), ("content", "Let me see.")):
        assert "".join(delta.get(name, "") for delta in deltas) == expected
    assert sum("tool_calls" in delta for delta in deltas) >= 1


def test_hidden_reasoning_is_left_out() -> None:
    message = ChatFormat(new_reading(hidden=True)).whole(0, ANSWER, None, "stop")["message"]
    assert "reasoning" not in message and message["content"] == "Let me see."


def test_answer_with_only_reasoning_has_no_content() -> None:
    message = ChatFormat(new_reading()).whole(0, "<think>Hm", None, "length")["message"]
    assert message["content"] is None and message["reasoning"] == "Hm"


@pytest.mark.parametrize(
    ("texts", "tokens"),
    [
        (["<think>", "\n", "Hm", ".", "</think>", "Yes"], 3),
        (["<th", "ink>Hm", "", "é", ".</", "think>", "\n", "Yes"], 4),  # half of é has no text
        (["<think>", "Hm", "", "", "é"], 4),
        (["<think>", "Hm", ""], 1),  # the stop token has no text
        (["<think>", "</think>", "Yes", ""], 0),
        (["<think>Hm</think>Yes"], 1),
        (["Yes", "<think>", "Hm"], 0),
        (["Yes"], 0),
        ([], 0),
    ],
)
def test_reasoning_tokens_are_counted(texts: list[str], tokens: int) -> None:
    whole, streamed = ChatFormat(new_reading()), ChatFormat(new_reading())
    assert whole.reasoning_tokens() is None
    whole.whole(0, texts, None, "stop")
    assert whole.reasoning_tokens() == tokens
    for text in texts:
        streamed.delta(0, [text], None, None)
    streamed.delta(0, [], None, "stop")
    assert streamed.reasoning_tokens() == tokens
    whole.whole(1, texts, None, "stop")
    assert whole.reasoning_tokens() == 2 * tokens


def test_reasoning_tokens_when_opened_by_the_prompt_or_not_parsed() -> None:
    opened = ChatFormat(Reading(Thought(THINK, True, False, {}, frozenset())))
    opened.whole(0, ["Hm", ".", "</think>", "Yes"], None, "stop")
    assert opened.reasoning_tokens() == 2
    plain = ChatFormat(Reading())
    plain.whole(0, ["<think>", "Hm", "</think>"], None, "stop")
    assert plain.reasoning_tokens() is None


def test_templates_receive_earlier_reasoning() -> None:
    """A client sends back what it got, under both names or under one."""
    for fields in (
        {"reasoning": "Hm.", "reasoning_content": "Hm."},
        {"reasoning": "Hm."},
        {"reasoning_content": "Hm.", "content": None},
    ):
        (plain,) = for_template([chat_message(**fields)])
        assert plain["reasoning"] == plain["reasoning_content"] == "Hm." and plain["content"] == ""
    with pytest.raises(InvalidInput) as caught:
        for_template([chat_message(role="user", content="x", reasoning="y")])
    assert caught.value.field == "messages[0].reasoning"
    assert (
        json.dumps(for_template([chat_message(content="x")]))
        == '[{"role": "assistant", "content": "x"}]'
    )
