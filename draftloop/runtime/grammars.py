"""Grammars over a model's vocabulary: which tokens may come next (llguidance).

The mask is a part of p, the law that tokens are sampled from: the target's, so that the output is a
text of the grammar, and as well the draft model's, so that its drafts are.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask
from torch import Tensor

from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.grammars.matching import Vocabulary, bits
from draftloop.grammars.text import refusal
from draftloop.runtime.choices import EXCLUDED
from draftloop.runtime.grammar_time import GrammarTime

MOST_KEPT = 32  # grammars; a service sees few of them again and again


class Grammars:
    """Those of one model; a matcher that was made once is copied from then on, from any thread."""

    def __init__(self, folder: Path, vocabulary_size: int, stop_token_ids: Sequence[int]) -> None:
        self._folder = folder
        self.vocabulary_size = vocabulary_size
        self.stop_token_ids = list(stop_token_ids)
        self._vocabulary: Vocabulary | None = None
        self._kept: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def knows(self, grammar: Grammar) -> bool:
        """Whether to follow it takes no time."""
        with self._lock:
            return grammar in self._kept

    def follow(self, grammar: Grammar) -> Follower:
        """At the beginning of an output.

        Takes up to a second for a grammar that is new and large, which is not for an event loop;
        orchestrators have tried it. Raises InvalidInput for one that means nothing.
        """
        with self._lock:
            matcher = self._kept.get(grammar)
        matcher = matcher or self._made(grammar)  # unlocked: others go on with those they know
        with self._lock:
            self._kept[grammar] = matcher
            self._kept.move_to_end(grammar)
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            place = matcher.deep_copy()
            return Follower(self.vocabulary, grammar, place, self.stop_token_ids, GrammarTime())

    def _made(self, grammar: Grammar) -> LLMatcher:
        grammar.require_end(self.stop_token_ids)
        try:
            vocabulary = self.vocabulary
        except ValueError as error:
            rule = f"cannot be followed with this model's tokenizer ({error})"
            raise InvalidInput("grammar", rule, grammar.field) from None
        return vocabulary.matcher(grammar)

    @property
    def vocabulary(self) -> Vocabulary:
        """Raises ValueError where the tokenizer does not do."""
        if self._vocabulary is None:
            made = Vocabulary(self._folder, self.vocabulary_size, self.stop_token_ids)
            self._vocabulary = self._vocabulary or made
        return self._vocabulary


class Follower:
    """One output's place in its grammar."""

    def __init__(
        self,
        known: Vocabulary,
        grammar: Grammar,
        matcher: LLMatcher,
        ends: Sequence[int],
        time: GrammarTime,
    ) -> None:
        self._known = known
        self._grammar = grammar
        self._matcher = matcher
        self._ends = ends
        self._time = time

    def copied(self) -> Follower:
        """To look ahead with, in the time that both have."""
        place = self._matcher.deep_copy()
        return Follower(self._known, self._grammar, place, self._ends, self._time)

    def allows(self, token_id: int) -> bool:
        """Whether it may come next. Raises InvalidInput where telling takes too much."""
        if self._matcher.is_stopped():  # at the end
            return token_id in self._ends
        with self._time.spent_on(self._grammar):
            return self._matcher.validate_tokens([token_id]) == 1

    def observe(self, token_ids: Sequence[int]) -> None:
        """Goes on by tokens of the output.

        Raises InvalidInput where they are none of the grammar's, or it is too large to go on with.
        """
        for token in token_ids:
            if self._matcher.is_stopped():  # at the end, and what comes is what ends the text
                break
            with self._time.spent_on(self._grammar):
                self._matcher.consume_token(token)
        if self._matcher.is_error():
            raise refusal(self._grammar, self._matcher.get_error())

    def applied(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """Logits [rows, vocabulary] with -inf over what may not come after the output and a path.

        A path that the grammar does not know keeps its row: nobody will get there. Raises
        InvalidInput where the grammar is too large to go on with.
        """
        vocabulary = self._known.size
        rows = allocate_token_bitmask(len(paths), vocabulary)
        known: dict[tuple[int, ...], LLMatcher | None] = {(): self._matcher}
        for row, path in enumerate(paths):
            with self._time.spent_on(self._grammar):
                place = _at(tuple(path), known)
                if place is None:
                    rows[row] = -1
                    continue
                self._known.fill(place, rows, row)
                if place.is_error():
                    raise refusal(self._grammar, place.get_error())
        allowed = torch.from_numpy(bits(rows)[:, :vocabulary].view(np.bool_))
        return logits.masked_fill(~allowed.to(logits.device), EXCLUDED)


def _at(path: tuple[int, ...], known: dict[tuple[int, ...], LLMatcher | None]) -> LLMatcher | None:
    """Behind a path; None where the grammar does not allow it. Paths of a tree share beginnings."""
    if path not in known:
        before = _at(path[:-1], known)
        behind = None if before is None else before.deep_copy()
        if behind is not None and behind.try_consume_tokens([path[-1]]) != 1:
            behind = None
        known[path] = behind
    return known[path]
