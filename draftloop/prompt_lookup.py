"""Prompt lookup: what followed the text's last tokens when they occurred before.

Saxena, "Prompt Lookup Decoding" (2023). Needs no model, so the orchestrator falls back on it too.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftloop.tree import DraftTree, TokenSource

MIN_CONTEXT = 2
MAX_CONTEXT = 6
# Chance that a copied token is right, by how many tokens of context matched.
ESTIMATES = {2: 0.4, 3: 0.55, 4: 0.65, 5: 0.7, 6: 0.75}


class PromptIndex:
    """The latest place of every run of 2 to 6 tokens in a growing text."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}

    def extend(self, token_ids: Sequence[int]) -> None:
        """Adds tokens to the text; a run is known only once a token has followed it."""
        for token in token_ids:
            end = len(self._tokens)
            for size in range(MIN_CONTEXT, min(MAX_CONTEXT, end) + 1):
                self._latest[tuple(self._tokens[end - size :])] = end
            self._tokens.append(token)

    def propose(self, max_tokens: int) -> DraftTree:
        """A chain copied from after the longest known suffix; empty where none is known."""
        size, start = self._match()
        if not size or max_tokens < 1:
            return DraftTree()
        copied = self._tokens[start : start + max_tokens]
        estimates = [ESTIMATES[size]] * len(copied)
        return DraftTree.chain(copied, TokenSource.PROMPT_LOOKUP, estimates)

    def _match(self) -> tuple[int, int]:
        for size in range(min(MAX_CONTEXT, len(self._tokens)), MIN_CONTEXT - 1, -1):
            start = self._latest.get(tuple(self._tokens[-size:]))
            if start is not None:
                return size, start
        return 0, 0
