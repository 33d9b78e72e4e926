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
from numpy.typing import NDArray
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
        self._scout: Scout | None = None  # once somebody looks ahead
        self._ends = ends
        self._time = time

    def allows(self, token_id: int, path: Sequence[int] = ()) -> bool:
        """Whether it may come next behind the output and a path.

        Raises InvalidInput where telling takes too much.
        """
        with self._time.spent_on(self._grammar):
            place = self._behind(path)
            if place is None:
                return False
            if place.is_stopped():  # at the end
                return token_id in self._ends
            return place.validate_tokens([token_id]) == 1

    def observe(self, token_ids: Sequence[int]) -> None:
        """Goes on by tokens of the output.

        Raises InvalidInput where they are none of the grammar's, or it is too large to go on with.
        """
        for token in token_ids:
            if self._matcher.is_stopped():  # at the end, and what comes is what ends the text
                break
            with self._time.spent_on(self._grammar):
                self._matcher.consume_token(token)
                if self._scout is not None and not self._scout.commit(token):
                    self._scout = None
        if self._matcher.is_error():
            raise refusal(self._grammar, self._matcher.get_error())

    def applied(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """Logits [rows, vocabulary] with -inf over what may not come after the output and a path.

        A path that the grammar does not know keeps its row: nobody will get there. Raises
        InvalidInput where the grammar is too large to go on with.
        """
        vocabulary = self._known.size
        rows = allocate_token_bitmask(len(paths), vocabulary)
        # In this order there is least to go back.
        for row in sorted(range(len(paths)), key=lambda row: tuple(paths[row])):
            with self._time.spent_on(self._grammar):
                self._fill(rows, row, paths[row])
        allowed = torch.from_numpy(bits(rows)[:, :vocabulary].view(np.bool_))
        return logits.masked_fill(~allowed.to(logits.device), EXCLUDED)

    def _fill(self, rows: NDArray[np.int32], row: int, path: Sequence[int]) -> None:
        for _ in range(2):  # see `_behind`
            place = self._behind(path)
            if place is None:
                rows[row] = -1
                return
            self._known.fill(place, rows, row)
            problem = place.get_error()
            if not problem:
                return
        raise refusal(self._grammar, problem)

    def _behind(self, path: Sequence[int]) -> LLMatcher | None:
        """Behind the output and a path, until somebody looks elsewhere; None as of `Scout.at`.

        A scout that is lost may have been so by all that it has seen on other paths: one that
        knows the output alone tries again. Raises InvalidInput where that is lost, too.
        """
        problem = ""
        for _ in range(2):
            if self._scout is None or self._scout.lost:
                self._scout = Scout(self._matcher, self._ends)
            place = self._scout.at(path)
            if not (problem := self._scout.problem):
                return place
        raise refusal(self._grammar, problem)


class Scout:
    """Goes ahead of an output, and comes back.

    A copy of a matcher holds the whole output: behind 16,000 tokens it takes half a millisecond and
    a megabyte, which is too much for every round and every node of a draft. A way back takes a
    microsecond. The matcher of the output itself, which must not be lost, never goes ahead.
    """

    def __init__(self, matcher: LLMatcher, ends: Sequence[int]) -> None:
        self._matcher = matcher.deep_copy()
        self._ends = ends
        self._path: list[int] = []  # how far it is ahead

    @property
    def lost(self) -> bool:
        """Whether something was too much for it; it never comes back then."""
        return bool(self._matcher.is_error())

    @property
    def problem(self) -> str:
        """What that was; empty for nothing."""
        return str(self._matcher.get_error() or "")

    def at(self, path: Sequence[int]) -> LLMatcher | None:
        """Behind a path; None where the grammar does not allow it, or the scout gets lost.

        At its end a grammar stays where it is, however often the text is ended there.
        """
        shared = 0
        for here, there in zip(self._path, path, strict=False):
            if here != there:
                break
            shared += 1
        if shared < len(self._path):
            self._matcher.rollback(len(self._path) - shared)
            del self._path[shared:]
        ahead = list(path[shared:])
        went = self._matcher.try_consume_tokens(ahead) if ahead else 0
        self._path += ahead[:went]
        arrived = went == len(ahead) or (ahead[went] in self._ends and self._matcher.is_stopped())
        return self._matcher if arrived and not self.lost else None

    def commit(self, token: int) -> bool:
        """The output goes on by this token, and the scout with it, unless it is lost."""
        if self._path[:1] != [token] and self.at([token]) is None:
            return False
        del self._path[0]
        return True
