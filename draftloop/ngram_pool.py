"""Lookahead's pool: n-grams by first token, most recently used first (2402.02057, section 3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice


class NgramPool:
    """At most `pool_size` continuations for every first token.

    A continuation that comes true is refreshed, because the text passed to `extend` then contains
    it again. A continuation ends at the first of `stop_token_ids`: no text continues there.
    """

    def __init__(self, ngram: int, pool_size: int, stop_token_ids: Collection[int] = ()) -> None:
        self._stop_token_ids = frozenset(stop_token_ids)
        self._ngram = ngram
        self._pool_size = pool_size
        # continuation -> None, oldest first: a dict keeps the order and finds an entry in one step
        self._by_first: dict[int, dict[tuple[int, ...], None]] = {}
        self._tail: list[int] = []

    def insert(self, ngrams: Iterable[Sequence[int]]) -> None:
        """Adds runs of two or more tokens, or refreshes them."""
        for ngram in ngrams:
            continuations = self._by_first.setdefault(ngram[0], {})
            continuation = self._up_to_a_stop(ngram[1:])
            continuations.pop(continuation, None)
            continuations[continuation] = None
            if len(continuations) > self._pool_size:
                del continuations[next(iter(continuations))]

    def _up_to_a_stop(self, tokens: Sequence[int]) -> tuple[int, ...]:
        if not self._stop_token_ids.isdisjoint(tokens):
            last = next(at for at, token in enumerate(tokens) if token in self._stop_token_ids)
            return tuple(tokens[: last + 1])
        return tuple(tokens)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Adds the n-grams of a growing text: prompt first, then what is committed."""
        text = [*self._tail, *token_ids]
        starts = range(len(text) - self._ngram + 1)
        self.insert(text[start : start + self._ngram] for start in starts)
        self._tail = text[-(self._ngram - 1) :]

    def candidates(self, first: int, most: int) -> list[tuple[int, ...]]:
        """At most `most` continuations of `first`, the latest first."""
        return list(islice(reversed(self._by_first.get(first, {})), most))
