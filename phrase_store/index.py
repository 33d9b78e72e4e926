"""The phrase index: how often which token followed the last 1 to 8 tokens, in bounded memory.

"Blended phrase counts": at every node, all known context lengths vote, weighted by how certain they
are (prediction by partial matching). A draft grows best first by the blended probabilities.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from draftloop.calibration import Calibration
from draftloop.phrase import MAX_CONTEXT, Phrase
from draftloop.tree import MAX_SUCCESSORS, SOURCES, DraftBudget, DraftTree
from phrase_store import growth, run
from phrase_store.counts import count_phrases
from phrase_store.stops import Stops, stops_of
from phrase_store.table import (
    BUCKET_BYTES,
    CLOCK,
    ENTRIES,
    EVICTIONS,
    Floats,
    Integers,
    Totals,
    buckets_in_use,
    empty_table,
)

# Number of tokens inserted until a count is worth half.
HALF_LIFE_TOKENS = 2_000_000
# What the target predicted on a rejected branch counts less than committed text.
PREDICTED_WEIGHT = 0.5
# Phrases inserted under one lock, which a lookup may have to wait for: some 100 microseconds.
BATCH = 256

_ONE = np.ones(1)
_NO_LOCK = contextlib.nullcontext()
_NOTHING = empty_table(0, 0.0)
_NO_STOPS = stops_of(())
_NO_SUCCESSORS = np.zeros((0, MAX_SUCCESSORS), np.int32)


class PhraseIndex:
    """Phrase counts in bounded memory. Thread-safe.

    `max_bytes` (at least 256) bounds the memory. With `grows`, only as much of it is used as the
    phrases need. In a full bucket, the entry with the smallest decayed count is replaced. Useful
    phrases stay, because accepted tokens are committed and counted again.
    """

    def __init__(
        self, *, max_bytes: int, half_life_tokens: int = HALF_LIFE_TOKENS, grows: bool = False
    ) -> None:
        self.lock = threading.Lock()
        self._max_bytes, self._grows = max(max_bytes, BUCKET_BYTES), grows
        self.table = empty_table(self._max_bytes, 1 / half_life_tokens, grows=grows)

    @property
    def entries(self) -> int:
        """Number of continuations in the index."""
        return int(self.table.state[ENTRIES])

    @property
    def evictions(self) -> int:
        """Number of continuations evicted so far."""
        return int(self.table.state[EVICTIONS])

    @property
    def bytes(self) -> int:
        """Memory in use."""
        return BUCKET_BYTES * buckets_in_use(self.table)

    def extend(self, context: Sequence[int], token_ids: Sequence[int]) -> None:
        """Counts `token_ids`, which followed `context` in a text."""
        recent = context[-MAX_CONTEXT:]
        text = np.array([*recent, *token_ids], np.int32)
        starts, contexts = np.array([0, text.size]), np.array([len(recent)])
        self.count(text, starts, contexts, _ONE, 0, 1)

    def insert(self, phrases: Iterable[Phrase]) -> None:
        """Counts phrases under their contexts."""
        known = list(phrases)
        if not known:
            return
        parts = chain.from_iterable(chain(phrase.context, phrase.tokens) for phrase in known)
        contexts = np.array([len(phrase.context) for phrase in known], np.int64)
        lengths = np.array([len(phrase.tokens) for phrase in known], np.int64)
        starts = np.concatenate([[0], np.cumsum(contexts + lengths)])
        text = np.fromiter(parts, np.int32, int(starts[-1]))
        weights = np.array([1.0 if p.committed else PREDICTED_WEIGHT for p in known])
        for begin in range(0, len(known), BATCH):
            self.count(text, starts, contexts, weights, begin, min(begin + BATCH, len(known)))

    def count(
        self, text: Integers, starts: Totals, contexts: Totals,
        weights: Floats, begin: int, end: int,
    ) -> None:  # fmt: skip
        """Counts phrases (see `count_phrases`); does nothing after `free`."""
        with self.lock:
            if self.table.words.size:
                count_phrases(*self.table, text, starts, contexts, weights, begin, end)

    def clear(self) -> None:
        """Forgets everything."""
        with self.lock:
            if self.table.words.size:  # not freed
                self._exchange(self._max_bytes)

    def free(self) -> None:
        """Frees the memory. From now on the index is empty and counts nothing."""
        with self.lock:
            self._exchange(0)

    def _exchange(self, max_bytes: int) -> None:
        """Replaces the table by an empty one of at most `max_bytes`."""
        known = self.table
        self.table = empty_table(max_bytes, known.decay, grows=self._grows)
        for total in (CLOCK, EVICTIONS):
            self.table.state[total] = known.state[total]


class Grown(NamedTuple):
    """A draft with calibrated estimates, and the raw score and the run of every node."""

    tree: DraftTree
    scores: list[float]
    runs: list[int]


NOTHING_GROWN = Grown(DraftTree(), [], [])


def grow(
    context: Sequence[int],
    budget: DraftBudget,
    *,
    shared: PhraseIndex | None,
    own: PhraseIndex | None,
    calibration: Calibration,
    successors: growth.Successors | None = None,
    max_leaves: int | None = None,
    run_before: int = 0,
    stops: Stops = _NO_STOPS,
) -> Grown:
    """The likeliest continuations of `context`, best first, within the budget.

    `own` and `shared`: indexes of the request's own text, which counts four times, and of shared
    phrases. They must differ; both are locked during the call.
    `successors` [vocabulary, MAX_SUCCESSORS]: the target's likeliest successors of each token,
    best first, -1 for none.
    `max_leaves` bounds the branches: 1 is a chain, 0 no draft.
    `run_before`: the run that the context ends with (see `follow`).
    Nothing follows a drafted token that is one of `stops`.
    """
    leaves = budget.max_nodes if max_leaves is None else max_leaves
    if min(budget.max_nodes, budget.max_depth, leaves) < 1:
        return NOTHING_GROWN
    integers = np.empty((4, budget.max_nodes), np.int32)
    values = np.empty((2, budget.max_nodes))
    with own.lock if own else _NO_LOCK, shared.lock if shared else _NO_LOCK:
        count = growth.grow_into(
            *(own.table if own else _NOTHING),
            *(shared.table if shared else _NOTHING),
            _NO_SUCCESSORS if successors is None else successors,
            calibration,
            np.array(context[-MAX_CONTEXT:], np.int32),
            run_before,
            stops,
            integers,
            values,
            budget.max_depth,
            leaves,
            float(budget.least_path_probability),  # an int would trigger a compilation of seconds
        )
    token_ids, parents, sources, runs = integers[:, :count].tolist()
    scores, estimates = values[:, :count].tolist()
    named = tuple(map(SOURCES.__getitem__, sources))
    tree = DraftTree(tuple(token_ids), tuple(parents), tuple(estimates), named)
    return Grown(tree, scores, runs)


def follow(
    context: Sequence[int],
    token_ids: Sequence[int],
    *,
    shared: PhraseIndex | None,
    own: PhraseIndex | None,
    run_before: int,
) -> int:
    """The run after `token_ids`, if the run after `context` was `run_before`.

    A run is how many of a text's last tokens phrases would have proposed. To be called before
    `token_ids` are counted.
    """
    recent = context[-MAX_CONTEXT:]
    text = np.array([*recent, *token_ids], np.int32)
    with own.lock if own else _NO_LOCK, shared.lock if shared else _NO_LOCK:
        return int(
            run.follow(
                *(own.table if own else _NOTHING),
                *(shared.table if shared else _NOTHING),
                text,
                len(recent),
                run_before,
            )
        )


def warm_up() -> None:
    """Compiles the loops, or loads them from the cache; takes seconds the first time."""
    index = PhraseIndex(max_bytes=1 << 12)
    index.extend((), (1, 2, 3, 1, 2))
    index.insert([Phrase((1, 2), (3,))])
    budget = DraftBudget(max_nodes=2, max_depth=2)
    grow((1, 2), budget, shared=index, own=None, calibration=Calibration())
    follow((1, 2), (3,), shared=index, own=None, run_before=0)
