"""Reasoning between marks before an answer: how to read it, and its grammar."""

from __future__ import annotations

import json
from dataclasses import dataclass

from draftloop.grammar import Grammar
from draftloop.grammars.text import with_parts
from orchestrator.gateway.reasoning.marks import Marks
from orchestrator.gateway.reasoning.reader import ReasoningReader
from orchestrator.tokenizer import Tokenizer

FORM = "form"  # the grammar of the answer, as a part of the whole


@dataclass(frozen=True, slots=True)
class Thought:
    """The reasoning that an answer may have.

    `opened`: the prompt already has the mark before reasoning. `closed`: the prompt has the mark
    after it, or has begun the answer without reasoning. `tokens`: ids of the marks that are single
    tokens. `named_tokens`: those of them that are special, which texts show only if named.
    """

    marks: Marks
    opened: bool
    closed: bool
    tokens: dict[str, int]
    named_tokens: frozenset[int]

    def reader(self) -> ReasoningReader:
        """A new reader; every answer needs its own."""
        return ReasoningReader(self.marks, opened=self.opened)

    def before(self, form: Grammar | None, *, calls: bool = False) -> Grammar | None:
        """The grammar of free reasoning followed by an answer of that form.

        `calls` makes no difference here; it does for channels.
        """
        if form is None or self.closed:
            return form
        end = self.tokens.get(self.marks.end)
        if end is None:
            rules = f"thought[suffix={json.dumps(self.marks.end)}]: /(?s:.*)/"
        else:
            rules = f"thought: THOUGHT <[{end}]>\nTHOUGHT: /(?s:.*)/"
        begin = self.tokens.get(self.marks.begin)
        opening = json.dumps(self.marks.begin) if begin is None else f"<[{begin}]>"
        start = "thought gap" if self.opened else f"({opening} thought gap)?"
        lark = f"start: {start} @{FORM}\n{rules}\ngap: /\\n{{0,2}}/\n"
        return with_parts(lark, {FORM: form})

    def headed(self, form: Grammar) -> Grammar:
        """The form of an answer without calls where calls are possible: here without a header."""
        return form


def thought_after(
    prompt: str, marks: Marks, tokenizer: Tokenizer, *, answer_start: str = ""
) -> Thought:
    """The reasoning that the answer may have. `answer_start`: what the prompt already has of it."""
    text = (answer_start or prompt).strip()
    opened, closed = text.endswith(marks.begin), text.endswith(marks.end)
    if answer_start:
        opened = text.startswith(marks.begin) and marks.end not in text
        closed = not opened
    found = {mark: tokenizer.added_token(mark) for mark in (marks.begin, marks.end)}
    tokens = {mark: token for mark, token in found.items() if token is not None}
    named = frozenset(token for token in tokens.values() if tokenizer.is_special(token))
    return Thought(marks, opened, closed, tokens, named)
