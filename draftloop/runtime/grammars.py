"""Grammars over a model's vocabulary: which tokens may come next (llguidance).

The mask is part of the distribution p that tokens are sampled from. It is applied to the target, so
that the output conforms to the grammar, and to the draft model, so that its drafts do too.
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
from numpy.typing import NDArray
from torch import Tensor

from draftloop.errors import InvalidInput
from draftloop.grammar import Grammar
from draftloop.grammars.matching import Vocabulary, bits
from draftloop.grammars.text import refusal
from draftloop.runtime.choices import EXCLUDED
from draftloop.runtime.grammar_time import GrammarTime

MAX_CACHED = 32  # grammars; a service typically sees a few of them repeatedly


class Grammars:
    """Cache of the compiled grammars of one model; usable from any thread."""

    def __init__(self, folder: Path, vocabulary_size: int, stop_token_ids: Sequence[int]) -> None:
        self._folder = folder
        self.vocabulary_size = vocabulary_size
        self.stop_token_ids = list(stop_token_ids)
        self._vocabulary: Vocabulary | None = None
        self._kept: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def is_compiled(self, grammar: Grammar) -> bool:
        """Whether `follow` is immediate, as the grammar is compiled."""
        with self._lock:
            return grammar in self._kept

    def follow(self, grammar: Grammar) -> Follower:
        """A follower at the beginning of an output.

        May take up to a second for a large new grammar, too long for an event loop. Raises
        InvalidInput for an invalid grammar, though orchestrators have already tried it.
        """
        with self._lock:
            matcher = self._kept.get(grammar)
        matcher = matcher or self._compile(grammar)  # without the lock: others need not wait
        with self._lock:
            self._kept[grammar] = matcher
            self._kept.move_to_end(grammar)
            if len(self._kept) > MAX_CACHED:
                self._kept.popitem(last=False)
            place = matcher.deep_copy()
            return Follower(self.vocabulary, grammar, place, self.stop_token_ids, GrammarTime())

    def _compile(self, grammar: Grammar) -> LLMatcher:
        grammar.require_stop_token(self.stop_token_ids)
        try:
            vocabulary = self.vocabulary
        except ValueError as error:
            rule = f"cannot be followed with this model's tokenizer ({error})"
            raise InvalidInput("grammar", rule, grammar.field) from None
        return vocabulary.matcher(grammar)

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's vocabulary. Raises ValueError if its tokenizer is not supported."""
        if self._vocabulary is None:
            made = Vocabulary(self._folder, self.vocabulary_size, self.stop_token_ids)
            self._vocabulary = self._vocabulary or made
        return self._vocabulary


class Follower:
    """One output's place in its grammar."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        grammar: Grammar,
        matcher: LLMatcher,
        ends: Sequence[int],
        time: GrammarTime,
    ) -> None:
        self._vocabulary = vocabulary
        self._grammar = grammar
        self._matcher = matcher
        self._scout: Scout | None = None  # created when first needed
        self._ends = ends
        self._time = time

    def allows(self, token_id: int, path: Sequence[int] = ()) -> bool:
        """Whether `applied` keeps the token after the output and a drafted path.

        Raises InvalidInput if the grammar is too expensive to follow.
        """
        with self._time.spent_on(self._grammar):
            place = self._matcher_after(path)
            if place is None:
                return False
            if place.is_stopped():  # at the grammar's end
                return token_id in self._ends
            return place.validate_tokens([token_id]) == 1 and self._is_in_mask(place, token_id)

    def _is_in_mask(self, place: LLMatcher, token_id: int) -> bool:
        """Whether a token that fits is also in the mask.

        They differ only if one text must follow: the mask then has one of the tokens that begin it
        (`Vocabulary.fill`).
        """
        return not place.compute_ff_bytes() or bool(self._vocabulary.mask(place)[token_id])

    def observe(self, token_ids: Sequence[int]) -> None:
        """Advances by tokens of the output.

        Raises InvalidInput if they violate the grammar, or if it is too large to be followed.
        """
        for token in token_ids:
            if self._matcher.is_stopped():  # at the end: the rest are end tokens
                break
            with self._time.spent_on(self._grammar):
                self._matcher.consume_token(token)
                if self._scout is not None and not self._scout.commit(token):
                    self._scout = None
        if self._matcher.is_error():
            raise refusal(self._grammar, self._matcher.get_error())

    def applied(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """The logits [rows, vocabulary] with -inf for tokens not allowed after output and path.

        The row of a path that violates the grammar is unchanged, as the output will never get
        there. Raises InvalidInput if the grammar is too large to be followed.
        """
        vocabulary = self._vocabulary.size
        rows = allocate_token_bitmask(len(paths), vocabulary)
        # In this order the scout has the fewest tokens to roll back.
        for row in sorted(range(len(paths)), key=lambda row: tuple(paths[row])):
            with self._time.spent_on(self._grammar):
                self._fill(rows, row, paths[row])
        allowed = torch.from_numpy(bits(rows)[:, :vocabulary].view(np.bool_))
        return logits.masked_fill(~allowed.to(logits.device), EXCLUDED)

    def _fill(self, rows: NDArray[np.int32], row: int, path: Sequence[int]) -> None:
        for _ in range(2):  # see `_matcher_after`
            place = self._matcher_after(path)
            if place is None:
                rows[row] = -1
                return
            self._vocabulary.fill(place, rows, row)
            problem = place.get_error()
            if not problem:
                return
        raise refusal(self._grammar, problem)

    def _matcher_after(self, path: Sequence[int]) -> LLMatcher | None:
        """The matcher after the output and a path, valid until the next call; None as `Scout.at`.

        A scout may fail because of all that it has seen on other paths, so a new one, which has
        seen the output only, tries once more. Raises InvalidInput if that fails too.
        """
        problem = ""
        for _ in range(2):
            if self._scout is None or self._scout.has_failed:
                self._scout = Scout(self._matcher, self._ends)
            place = self._scout.at(path)
            if not (problem := self._scout.problem):
                return place
        raise refusal(self._grammar, problem)


class Scout:
    """A matcher that goes ahead of the output along drafted paths, and rolls back.

    Copying a matcher for every node would be too slow: after 16,000 tokens a copy takes half a
    millisecond and a megabyte. A rollback takes a microsecond. The output's own matcher never goes
    ahead, as it must not fail.
    """

    def __init__(self, matcher: LLMatcher, ends: Sequence[int]) -> None:
        self._matcher = matcher.deep_copy()
        self._ends = ends
        self._path: list[int] = []  # tokens that it is ahead of the output

    @property
    def has_failed(self) -> bool:
        """Whether the matcher has failed; it cannot be used any more then."""
        return bool(self._matcher.is_error())

    @property
    def problem(self) -> str:
        """The matcher's error; empty if there is none."""
        return str(self._matcher.get_error() or "")

    def at(self, path: Sequence[int]) -> LLMatcher | None:
        """The matcher after a path; None if the grammar does not allow it or the scout fails.

        At the end of a grammar, end tokens leave the matcher where it is.
        """
        shared = 0
        for own_token, path_token in zip(self._path, path, strict=False):
            if own_token != path_token:
                break
            shared += 1
        if shared < len(self._path):
            self._matcher.rollback(len(self._path) - shared)
            del self._path[shared:]
        ahead = list(path[shared:])
        consumed = self._matcher.try_consume_tokens(ahead) if ahead else 0
        self._path += ahead[:consumed]
        is_reached = consumed == len(ahead) or (
            ahead[consumed] in self._ends and self._matcher.is_stopped()
        )
        return self._matcher if is_reached and not self.has_failed else None

    def commit(self, token: int) -> bool:
        """Follows the output by a token; False if the scout cannot."""
        if self._path[:1] != [token] and self.at([token]) is None:
            return False
        del self._path[0]
        return True
