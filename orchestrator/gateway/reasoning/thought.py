"""What a chat's answer may think aloud before it says anything."""

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
    """`opened`, `closed`: the prompt ends with the mark before reasoning, or with the one behind.

    `tokens`: the ids of marks that are tokens of their own. `named_tokens`: those of them that are
    special, which texts tell only where they are named.
    """

    marks: Marks
    opened: bool
    closed: bool
    tokens: dict[str, int]
    named_tokens: frozenset[int]

    def reader(self) -> ReasoningReader:
        """A new one for every answer."""
        return ReasoningReader(self.marks, opened=self.opened)

    def before(self, form: Grammar | None, *, calls: bool = False) -> Grammar | None:
        """The grammar of reasoning, in whatever words, and an answer of that form.

        That it `calls` makes no difference here.
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
        """The form of an answer that calls nothing, where others may call: nothing marks it."""
        return form


def thought_after(prompt: str, marks: Marks, tokenizer: Tokenizer, *, begun: str = "") -> Thought:
    """What the answer to a prompt may think; `begun` is what the prompt has of it already."""
    text = (begun or prompt).strip()
    opened, closed = text.endswith(marks.begin), text.endswith(marks.end)
    if begun:
        opened = text.startswith(marks.begin) and marks.end not in text
        closed = not opened
    found = {mark: tokenizer.added_token(mark) for mark in (marks.begin, marks.end)}
    tokens = {mark: token for mark, token in found.items() if token is not None}
    named = frozenset(token for token in tokens.values() if tokenizer.is_special(token))
    return Thought(marks, opened, closed, tokens, named)
