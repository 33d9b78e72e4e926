"""The time to split an answer into its parts grows no faster than the answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.gateway.anthropic.output import KINDS
from orchestrator.gateway.chat_reader import ChatReader
from orchestrator.gateway.output import COMPLETED, Kinds, Output
from orchestrator.gateway.parts import CallPart, Content, Part, Parts, Reasoning
from orchestrator.gateway.reasoning.marks import THINK
from orchestrator.gateway.reasoning.reader import ReasoningReader
from orchestrator.gateway.responses.output import kinds
from orchestrator.gateway.tools.notations import NOTATIONS
from orchestrator.gateway.tools.reader import CallReader

TOKENS = 2_000
HERMES = NOTATIONS["hermes"]


class CountingToken(str):
    """A token that counts the letters copied when it is appended to texts."""

    copied = 0

    def __radd__(self, text: str) -> str:
        CountingToken.copied += len(text)
        return str.__add__(text, self)


@pytest.fixture(autouse=True)
def _counted() -> None:
    CountingToken.copied = 0


def new_reasoning_reader() -> ReasoningReader:
    return ReasoningReader(THINK, opened=True)


def new_call_reader() -> CallReader:
    return CallReader(HERMES)


@pytest.mark.parametrize("make", [
    new_reasoning_reader, lambda: ReasoningReader(THINK, opened=False), new_call_reader,
])  # fmt: skip
@pytest.mark.parametrize("before", ["", "a", "<think>", "a<tool_call>", "a<tool_call>{}"])
def test_endless_line_ends_are_read_in_linear_time(
    make: Callable[[], ReasoningReader | CallReader], before: str
) -> None:
    """Small models write line ends up to the limit; they are held back until more text follows."""
    reader, line_ends = make(), "\n\n" * TOKENS
    parts = reader.feed(before)
    for _ in range(TOKENS):
        parts.extend(reader.feed(CountingToken("\n\n")))
    assert CountingToken.copied < 20 * TOKENS
    parts.extend(reader.feed(CountingToken("b")))
    parts.extend(reader.finish())
    text = parts.reasoning + parts.content
    assert text.endswith(f"{line_ends}b") or (parts.reasoning == "b" and not parts.content)


def test_whole_answer_is_read_without_copying() -> None:
    """A whole answer is read at once, on the event loop."""
    reader = ChatReader(None, None, hidden=False)
    (part,) = reader.feed([CountingToken("ab")] * TOKENS, ends=True)
    assert part == Content("ab" * TOKENS, tuple(range(TOKENS)))
    assert CountingToken.copied == 0


def test_reasoning_and_calls_of_a_whole_answer_are_split() -> None:
    reader = ChatReader(new_reasoning_reader(), new_call_reader(), hidden=False)
    arguments = '{"a": "' + "b" * TOKENS + '"}'
    text = (
        f'{"c" * TOKENS}</think>d<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    )
    parts = reader.feed([CountingToken(letter) for letter in text], ends=True)
    assert [type(part) for part in parts] == [Reasoning, Content, CallPart]
    assert parts.reasoning == "c" * TOKENS and parts.calls[0].arguments == arguments


@pytest.mark.parametrize("output_kinds", [KINDS, kinds({}), kinds({}, ["f"])])
def test_events_do_not_copy_the_text_so_far(output_kinds: Kinds) -> None:
    """Each event carries only what is new; the text so far is not joined for it."""
    output, written = Output(output_kinds), '{"input": "' + "ab" * TOKENS + '"}'
    letters = [CountingToken(letter) for letter in written]
    parts: list[Part] = [Reasoning(letter) for letter in letters]
    parts += [Content(letter) for letter in letters]
    parts += [CallPart(0, "i", "f", ""), *(CallPart(0, "", "", letter) for letter in letters)]
    for part in parts:
        list(output.feed(Parts([part])))
    list(output.finish(COMPLETED))
    reasoning, content, calls = map(str, output.value)
    assert written in reasoning and written in content and "ab" * TOKENS in calls
    assert CountingToken.copied < 20 * len(parts)


def test_parts_of_a_list_match_parts_added_one_by_one() -> None:
    parts: list[Part] = [
        Content(""), Reasoning("a"), Reasoning(""), Reasoning("b"), Content("c", (1,)),
        Content("", (2,)), Content("d", (3, 4)), CallPart(0, "i", "f", "{"),
        CallPart(0, "", "", "}"), CallPart(1, "j", "f", ""), CallPart(1, "", "", "{}"),
        Content("e"),
    ]  # fmt: skip
    added = Parts()
    for part in parts:
        added.add(part)
    assert Parts.of(parts) == added
    assert added[:2] == [Reasoning("ab"), Content("cd", (1, 3, 4))]
