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
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray
from torch import Tensor

from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.grammars.text import grammar_text, refusal
from draftloop.runtime.choices import EXCLUDED

MOST_KEPT = 64  # grammars; a service sees few of them again and again


class Grammars:
    """Those of one model; a matcher that was made once is copied from then on, from any thread."""

    def __init__(self, folder: Path, vocabulary_size: int, stop_token_ids: Sequence[int]) -> None:
        self._folder = folder
        self.vocabulary_size = vocabulary_size
        self.stop_token_ids = list(stop_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._kept: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def follow(self, grammar: Grammar) -> Follower:
        """At the beginning of an output.

        Takes up to a second for a grammar that is new and large, which is not for an event loop.
        Raises InvalidInput for one that means nothing.
        """
        with self._lock:
            matcher = self._kept.get(grammar)
        matcher = matcher or self._made(grammar)  # unlocked: others go on with those they know
        with self._lock:
            self._kept[grammar] = matcher
            self._kept.move_to_end(grammar)
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return Follower(self, grammar, matcher.deep_copy())

    def _made(self, grammar: Grammar) -> LLMatcher:
        grammar.require_end(self.stop_token_ids)
        try:
            self._tokenizer = self._tokenizer or self._read_tokenizer()
        except ValueError as error:
            rule = f"cannot be followed with this model's tokenizer ({error})"
            raise InvalidInput("grammar", rule, grammar.field) from None
        matcher = LLMatcher(self._tokenizer, grammar_text(grammar), log_level=0)
        self._try(matcher.deep_copy(), grammar)
        return matcher

    def _try(self, matcher: LLMatcher, grammar: Grammar) -> None:
        """By a first token: many a grammar is found to be too large only then."""
        rows = allocate_token_bitmask(1, self.vocabulary_size)
        self.fill(matcher, rows, 0)
        matcher.consume_token(int(_bits(rows).argmax()))
        if matcher.is_error():
            raise refusal(grammar, matcher.get_error())

    def fill(self, matcher: LLMatcher, rows: NDArray[np.int32], row: int) -> None:
        """Sets the bits of the tokens that may come next.

        Where only one text may, llguidance allows the first token of what the tokenizer makes of
        it. A text that has the name of a special token becomes that token, which has no letters and
        does not fit: then it is spelled.
        """
        fill_next_token_bitmask(matcher, rows, row)
        (words,) = rows[row].nonzero()
        if len(words) != 1 or (word := int(rows[row, words[0]]) & 0xFFFFFFFF) & (word - 1):
            return
        assert self._tokenizer is not None
        token = 32 * int(words[0]) + word.bit_length() - 1
        if self._tokenizer.is_special_token(token) and not matcher.validate_tokens([token]):
            text = matcher.compute_ff_bytes().decode("utf-8", "ignore")  # none at the end
            for spelled in self._tokenizer.greedy_tokenize(text)[:1]:
                rows[row] = 0
                rows.view(np.uint32)[row, spelled // 32] = 1 << spelled % 32

    def _read_tokenizer(self) -> LLTokenizer:
        file = self._folder / "tokenizer.json"
        return LLTokenizer(str(file), self.vocabulary_size, self.stop_token_ids)


class Follower:
    """One output's place in its grammar."""

    def __init__(self, known: Grammars, grammar: Grammar, matcher: LLMatcher) -> None:
        self._known = known
        self._grammar = grammar
        self._matcher = matcher

    def copied(self) -> Follower:
        """To look ahead with."""
        return Follower(self._known, self._grammar, self._matcher.deep_copy())

    def allows(self, token_id: int) -> bool:
        """Whether it may come next."""
        if self._matcher.is_stopped():  # at the end
            return token_id in self._known.stop_token_ids
        return self._matcher.validate_tokens([token_id]) == 1

    def observe(self, token_ids: Sequence[int]) -> None:
        """Goes on by tokens of the output.

        Raises InvalidInput where they are none of the grammar's, or it is too large to go on with.
        """
        for token in token_ids:
            if self._matcher.is_stopped():  # at the end, and what comes is what ends the text
                break
            self._matcher.consume_token(token)
        if self._matcher.is_error():
            raise refusal(self._grammar, self._matcher.get_error())

    def applied(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """Logits [rows, vocabulary] with -inf over what may not come after the output and a path.

        A path that the grammar does not know keeps its row: nobody will get there.
        """
        vocabulary = self._known.vocabulary_size
        rows = allocate_token_bitmask(len(paths), vocabulary)
        known: dict[tuple[int, ...], LLMatcher | None] = {(): self._matcher}
        for row, path in enumerate(paths):
            place = _at(tuple(path), known)
            if place is None:
                rows[row] = -1
            else:
                self._known.fill(place, rows, row)
                if place.is_error():
                    raise refusal(self._grammar, place.get_error())
        allowed = torch.from_numpy(_bits(rows)[:, :vocabulary].view(np.bool_))
        return logits.masked_fill(~allowed.to(logits.device), EXCLUDED)


def _bits(rows: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Of each row one for every token."""
    return np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")


def _at(path: tuple[int, ...], known: dict[tuple[int, ...], LLMatcher | None]) -> LLMatcher | None:
    """Behind a path; None where the grammar does not allow it. Paths of a tree share beginnings."""
    if path not in known:
        before = _at(path[:-1], known)
        behind = None if before is None else before.deep_copy()
        if behind is not None and behind.try_consume_tokens([path[-1]]) != 1:
            behind = None
        known[path] = behind
    return known[path]
