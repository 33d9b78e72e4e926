"""The parts of a chat's answer and their tokens, however the rounds divide it."""

from __future__ import annotations

import itertools

import pytest

from orchestrator.gateway.chat_reader import ChatReader, Reading
from orchestrator.gateway.formats import ChatFormat
from orchestrator.gateway.output import COMPLETED, Output
from orchestrator.gateway.parts import CallPart, Content, Parts, Reasoning
from orchestrator.gateway.reasoning.channel_thought import ChannelThought
from orchestrator.gateway.reasoning.marks import THINK
from orchestrator.gateway.reasoning.thought import Thought
from orchestrator.gateway.responses.output import kinds
from orchestrator.gateway.tools.harmony import HARMONY
from orchestrator.gateway.tools.hermes import HERMES
from orchestrator.gateway.tools.reader import CallReader

THOUGHT = Thought(THINK, opened=False, closed=False, tokens={}, named_tokens=frozenset())
CHANNELS = ChannelThought("", {}, frozenset())
CALL = (
    "<tool_call>",
    '\n{"name": "f", ',
    '"arguments": {"city"',
    ': "Rome"}}\n',
    "</tool_",
    "call>",
)
TOKENS = (
    "<th",
    "ink>",
    "\n",
    "Hm",
    ".",
    "\n</think>",
    "\n\n",
    "Look",
    ":",
    " ",
    *CALL,
    "\nThere",
    "!",
)


def reader() -> ChatReader:
    return ChatReader(THOUGHT.reader(), CallReader(HERMES), hidden=False)


def read_in_rounds(read: ChatReader, tokens: tuple[str, ...], size: int) -> list[Parts]:
    rounds = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    return [*(read.feed(texts, ends=False) for texts in rounds), read.feed((), ends=True)]


def merged_parts(rounds: list[Parts]) -> Parts:
    parts = Parts()
    for part in itertools.chain(*rounds):
        parts.add(part)
    return parts


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, len(TOKENS)])
def test_parts_keep_their_order_for_any_round_size(size: int) -> None:
    """Each part has the tokens of its own text, without those of the marks between."""
    parts = merged_parts(read_in_rounds(reader(), TOKENS, size))
    called = parts[2]
    assert isinstance(called, CallPart)
    assert parts == [
        Reasoning("Hm."),
        Content("Look:", (7, 8)),
        CallPart(0, called.call_id, "f", '{"city": "Rome"}'),
        Content("\nThere!", (16, 17)),
    ]


@pytest.mark.parametrize("size", [1, 4, len(TOKENS)])
def test_output_items_keep_the_order_of_parts(size: int) -> None:
    output = Output(kinds({}))
    for parts in read_in_rounds(reader(), TOKENS, size):
        list(output.feed(parts))
    list(output.finish(COMPLETED))
    texts = [item.get("arguments") or item["content"][0]["text"] for item in output.value]
    assert texts == ["Hm.", "Look:", '{"city": "Rome"}', "\nThere!"]


def test_channel_messages_keep_their_order() -> None:
    commentary = "<|channel|>commentary<|message|>So.<|end|><|start|>assistant"
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    tokens = (commentary, thought, commentary, "<|channel|>final<|message|>", "Yes", ".")
    for size in (1, len(tokens)):
        parts = merged_parts(read_in_rounds(Reading(CHANNELS).reader(), tokens, size))
        expected = [Content("So.", (0,)), Reasoning("Hm."), Content("\nSo.\nYes.", (2, 4, 5))]
        assert parts == expected


def test_held_back_text_keeps_its_place_among_parts() -> None:
    head = "<|channel|>{}<|message|>{}<|end|><|start|>assistant"
    items = [("final", "Hi <"), ("analysis", "Hm."), ("final", "So.")]
    read = ChatReader(CHANNELS.reader(), CallReader(HARMONY), hidden=False)
    parts = merged_parts(read_in_rounds(read, tuple(head.format(*item) for item in items), 1))
    assert parts == [Content("Hi <", (0,)), Reasoning("Hm."), Content("\nSo.", (2,))]


def test_text_mistaken_for_a_call_keeps_its_tokens() -> None:
    (parts,) = [some for some in read_in_rounds(reader(), ("Ok", " <tool", "s>", "."), 4) if some]
    assert parts == [Content("Ok <tools>.", (0, 1, 2, 3))]


@pytest.mark.parametrize("size", [1, 3, len(TOKENS)])
def test_log_probabilities_omit_hidden_reasoning(size: int) -> None:
    form = ChatFormat(Reading(THOUGHT, hidden=True))
    shown: list[str] = []
    for at in range(0, len(TOKENS), size):
        texts = TOKENS[at : at + size]
        ends = "stop" if at + size >= len(TOKENS) else None
        logprobs = {"content": [{"token": text} for text in texts], "refusal": None}
        choice = form.delta(0, texts, logprobs, ends)
        shown.extend(entry["token"] for entry in (choice["logprobs"] or {"content": []})["content"])
    assert shown == list(TOKENS[7:])
