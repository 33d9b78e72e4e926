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


class Token(str):
    """A token that counts the letters copied when it is appended to texts."""

    copied = 0

    def __radd__(self, text: str) -> str:
        Token.copied += len(text)
        return str.__add__(text, self)


@pytest.fixture(autouse=True)
def _counted() -> None:
    Token.copied = 0


def reasoning() -> ReasoningReader:
    return ReasoningReader(THINK, opened=True)


def calls() -> CallReader:
    return CallReader(HERMES)


@pytest.mark.parametrize("make", [
    reasoning, lambda: ReasoningReader(THINK, opened=False), calls,
])  # fmt: skip
@pytest.mark.parametrize("before", ["", "a", "<think>", "a<tool_call>", "a<tool_call>{}"])
def test_line_ends_without_number(
    make: Callable[[], ReasoningReader | CallReader], before: str
) -> None:
    """Small models write them until a limit stops them; they are sent once more text follows."""
    reader, ends = make(), "\n\n" * TOKENS
    said = reader.feed(before)
    for _ in range(TOKENS):
        said.extend(reader.feed(Token("\n\n")))
    assert Token.copied < 20 * TOKENS
    said.extend(reader.feed(Token("b")))
    said.extend(reader.finish())
    told = said.reasoning + said.content
    assert told.endswith(f"{ends}b") or (said.reasoning == "b" and not said.content)


def test_a_whole_answer() -> None:
    """A whole answer is read at once, on the event loop."""
    reader = ChatReader(None, None, hidden=False)
    (said,) = reader.feed([Token("ab")] * TOKENS, ends=True)
    assert said == Content("ab" * TOKENS, tuple(range(TOKENS)))
    assert Token.copied == 0


def test_reasoning_and_calls_of_a_whole_answer() -> None:
    reader = ChatReader(reasoning(), calls(), hidden=False)
    arguments = '{"a": "' + "b" * TOKENS + '"}'
    text = (
        f'{"c" * TOKENS}</think>d<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    )
    said = reader.feed([Token(letter) for letter in text], ends=True)
    assert [type(part) for part in said] == [Reasoning, Content, CallPart]
    assert said.reasoning == "c" * TOKENS and said.calls[0].arguments == arguments


@pytest.mark.parametrize("made_of", [KINDS, kinds({}), kinds({}, ["f"])])
def test_an_answer_in_events(made_of: Kinds) -> None:
    """Each event carries only what is new; the text so far is not joined for it."""
    output, written = Output(made_of), '{"input": "' + "ab" * TOKENS + '"}'
    letters = [Token(letter) for letter in written]
    told: list[Part] = [Reasoning(letter) for letter in letters]
    told += [Content(letter) for letter in letters]
    told += [CallPart(0, "i", "f", ""), *(CallPart(0, "", "", letter) for letter in letters)]
    for part in told:
        list(output.feed(Parts([part])))
    list(output.finish(COMPLETED))
    thought, said, called = map(str, output.value)
    assert written in thought and written in said and "ab" * TOKENS in called
    assert Token.copied < 20 * len(told)


def test_parts_at_once_are_those_of_one_by_one() -> None:
    told: list[Part] = [
        Content(""), Reasoning("a"), Reasoning(""), Reasoning("b"), Content("c", (1,)),
        Content("", (2,)), Content("d", (3, 4)), CallPart(0, "i", "f", "{"),
        CallPart(0, "", "", "}"), CallPart(1, "j", "f", ""), CallPart(1, "", "", "{}"),
        Content("e"),
    ]  # fmt: skip
    one_by_one = Parts()
    for part in told:
        one_by_one.add(part)
    assert Parts.of(told) == one_by_one
    assert one_by_one[:2] == [Reasoning("ab"), Content("cd", (1, 3, 4))]
