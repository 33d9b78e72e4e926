"""Reasoning in Harmony's channels: how to read it, and its grammar."""

from __future__ import annotations

import json
from dataclasses import dataclass

from draftloop.grammar import Grammar
from draftloop.grammars.text import with_parts
from orchestrator.gateway.harmony import ALL, CHANNEL, END, MESSAGE, ROLE, START
from orchestrator.gateway.reasoning.channels import ChannelReader, answer_start_in
from orchestrator.gateway.reasoning.thought import FORM
from orchestrator.tokenizer import Tokenizer

FINAL_CONTENT = "said"  # the grammar of the final channel's content


@dataclass(frozen=True, slots=True)
class ChannelThought:
    """The reasoning that an answer in channels may have.

    `answer_start`: what the prompt already has of the answer. `tokens`: ids of the marks that are
    single tokens. `named_tokens`: those of them that are special, which texts show only if named.
    """

    answer_start: str
    tokens: dict[str, int]
    named_tokens: frozenset[int]

    def reader(self) -> ChannelReader:
        """A new reader; every answer needs its own."""
        return ChannelReader(self.answer_start)

    def before(self, form: Grammar | None, *, calls: bool) -> Grammar | None:
        """The grammar of free reasoning followed by an answer of that form.

        `calls`: the form includes tool calls and brings its messages' headers itself.
        """
        kind = self.reader().kind
        if form is None or kind not in (None, "reasoning"):
            return form
        prefix = "" if kind is None else "thought "
        final = "" if calls else self._final
        rules = [
            f"start: {prefix}analysis* {final} @{FORM}",
            f'analysis: {self._mark(CHANNEL)} "analysis" {self._mark(MESSAGE)} thought',
            f'thought: words {self._mark(START)} "{ROLE}"',
            *self._words(),
        ]
        return with_parts("\n".join([*rules, ""]), {FORM: form})

    def headed(self, form: Grammar) -> Grammar:
        """The form with its header, for an answer without calls where calls are possible."""
        return with_parts(f"start: {self._final} @{FINAL_CONTENT}\n", {FINAL_CONTENT: form})

    @property
    def _final(self) -> str:
        return f'{self._mark(CHANNEL)} "final" {self._mark(MESSAGE)}'

    def _mark(self, mark: str) -> str:
        token = self.tokens.get(mark)
        return json.dumps(mark) if token is None else f"<[{token}]>"

    def _words(self) -> list[str]:
        if END in self.tokens:
            return [f"words: WORDS {self._mark(END)}", "WORDS: /(?s:.*)/"]
        return [f"words[suffix={self._mark(END)}]: /(?s:.*)/"]


def channels_after(prompt: str, tokenizer: Tokenizer) -> ChannelThought:
    """The reasoning that the answer to a prompt may have."""
    found = {mark: tokenizer.added_token(mark) for mark in ALL}
    tokens = {mark: token for mark, token in found.items() if token is not None}
    named = frozenset(token for token in tokens.values() if tokenizer.is_special(token))
    return ChannelThought(answer_start_in(prompt), tokens, named)
