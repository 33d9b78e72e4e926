"""Checks of answers that call tools: read in pieces, or constrained by grammars."""

from __future__ import annotations

from collections.abc import Sequence

from draftloop.grammar import Grammar
from orchestrator.gateway.parts import CallPart
from orchestrator.gateway.tools.grammar import calls_grammar
from orchestrator.gateway.tools.notation import Functions, Notation
from orchestrator.gateway.tools.reader import CallReader
from orchestrator.gateway.tools.schemas import Function
from tests.support.marks import Tokens, in_pieces, tokens_with

Calls = list[tuple[str, str]]  # names and arguments


def read_calls(
    notation: Notation, pieces: Sequence[str], functions: Functions | None = None
) -> tuple[str, Calls]:
    """Content and calls of an answer that arrives in these pieces."""
    reader = CallReader(notation, functions)
    results = [*(reader.feed(piece) for piece in pieces), reader.finish()]
    calls = join_calls([part for one in results for part in one.calls])
    assert len(calls) == reader.calls
    return "".join(one.content for one in results), calls


def join_calls(parts: Sequence[CallPart]) -> Calls:
    """Joins the parts of calls, as clients do with the deltas of a stream."""
    calls: Calls = []
    for part in parts:
        if part.name:
            assert part.call == len(calls) and part.call_id
            calls.append((part.name, ""))
        calls[-1] = (calls[-1][0], calls[-1][1] + part.arguments)
    return calls


def is_allowed(
    notation: Notation,
    functions: Sequence[Function],
    text: str,
    *,
    several: bool = True,
    tokens: Tokens | None = None,
) -> bool:
    """Whether a text is allowed as an answer that must call; by default, of bundled tokens."""
    tokens = tokens or tokens_with()
    grammar = calls_grammar(notation, functions, tokens.tokenizer, several=several)
    return matches_grammar(grammar, text, tokens)


def matches_grammar(grammar: Grammar, text: str, tokens: Tokens) -> bool:
    """Whether the text, followed by the end token, matches the grammar."""
    matcher = tokens.vocabulary.matcher(grammar)
    token_ids = tokens.tokenizer.encode(text, add_special_tokens=False)
    accepted: int = matcher.validate_tokens([*token_ids, 0])
    return accepted == len(token_ids) + 1


def assert_read_equally_however_cut(
    notation: Notation, pieces: list[str], cuts: list[int], functions: Functions | None = None
) -> None:
    """Asserts that a text is read equally however it is cut, and is all content without calls."""
    text = "".join(pieces)
    content, calls = read_calls(notation, [text], functions)
    assert read_calls(notation, in_pieces(text, cuts), functions) == (content, calls)
    if not calls:
        assert content == text
