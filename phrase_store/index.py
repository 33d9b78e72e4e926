"""The phrase index: how often which token followed the last 1 to 8 tokens, in bounded memory.

"Blended phrase counts": at a node every context length that is known votes, weighted by how
certain it is (prediction by partial matching), and a draft grows best first on the blend.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from draftloop.calibration import DEPTH_EDGES, PRIOR_TRIALS, SCORE_EDGES, SHAPE, Calibration
from draftloop.phrase import MAX_CONTEXT, Phrase
from draftloop.tree import ROOT, DraftBudget, DraftTree, TokenSource
from phrase_store import counts, growth

# Inserted tokens after which a count is worth half.
HALF_LIFE_TOKENS = 2_000_000
# What the target only predicted, on a branch that it did not take, is worth less than text.
PREDICTED_WEIGHT = 0.5
# Phrases inserted in one go: a lookup waits for no more than that, some 100 microseconds.
BATCH = 256

_NOTHING = counts.Table(
    words=np.zeros(0, np.uint32),
    counts=np.zeros(0, np.float32),
    state=np.zeros(3, np.int64),
    decay=0.0,
)
_EDGES = (np.array(SCORE_EDGES), np.array(DEPTH_EDGES, np.float64))
_SOURCES = (TokenSource.PHRASE, TokenSource.PROMPT_LOOKUP)


class PhraseIndex:
    """Counts in one array of fixed size; any thread may call anything.

    `max_bytes` (at least 256) bounds the memory. Where a bucket is full the least decayed count
    goes, so what is used stays: what gets accepted is committed, and counted again.
    """

    def __init__(self, *, max_bytes: int, half_life_tokens: int = HALF_LIFE_TOKENS) -> None:
        buckets = max(1, max_bytes // (4 * counts.BUCKET_WORDS))
        words = np.zeros(buckets * counts.BUCKET_WORDS, np.uint32)
        self.lock = threading.Lock()
        self.table = counts.Table(
            words=words,
            counts=words.view(np.float32),
            state=np.zeros(3, np.int64),
            decay=-math.log(2) / half_life_tokens,
        )

    @property
    def entries(self) -> int:
        """Continuations of contexts that are known."""
        return int(self.table.state[counts.ENTRIES])

    @property
    def evictions(self) -> int:
        """Continuations that had to make room, all told."""
        return int(self.table.state[counts.EVICTIONS])

    @property
    def bytes(self) -> int:
        """Memory that the index may come to use."""
        return int(self.table.words.nbytes)

    def extend(self, context: Sequence[int], token_ids: Sequence[int]) -> None:
        """Counts a text that grew by `token_ids` after `context`."""
        recent = context[-MAX_CONTEXT:]
        text = np.array([*recent, *token_ids], np.int32)
        with self.lock:
            counts.count_run(self.table, text, 0, len(recent), text.size, 1.0)

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
            end = min(begin + BATCH, len(known))
            with self.lock:
                counts.count_runs(self.table, text, starts, contexts, weights, begin, end)

    def clear(self) -> None:
        """Forgets everything."""
        with self.lock:
            self.table.words[:] = 0
            self.table.state[counts.ENTRIES] = 0


class Grown(NamedTuple):
    """A draft, its estimates corrected, and the raw score of every node."""

    tree: DraftTree
    scores: list[float]


def grow(
    context: Sequence[int],
    budget: DraftBudget,
    *,
    shared: PhraseIndex | None,
    own: PhraseIndex | None,
    calibration: Calibration,
    most_leaves: int | None = None,
) -> Grown:
    """The likeliest continuations of `context`, best first, within the budget.

    `most_leaves` bounds the branches: 1 is a chain. Own text counts four times.
    """
    if budget.max_nodes < 1 or budget.max_depth < 1:
        return Grown(DraftTree(), [])
    nodes = np.empty(budget.max_nodes, growth.NODE)
    with contextlib.ExitStack() as held:
        for index in (own, shared):
            if index is not None:
                held.enter_context(index.lock)
        count = growth.grow_nodes(
            own.table if own else _NOTHING,
            shared.table if shared else _NOTHING,
            _correction(calibration),
            np.array(context[-MAX_CONTEXT:], np.int32),
            nodes,
            budget.max_depth,
            most_leaves or budget.max_nodes,
            budget.least_path_probability,
        )
    return _grown(nodes[:count])


def warm_up() -> None:
    """Compiles the loops, or loads them where that was done before: seconds the first time."""
    index = PhraseIndex(max_bytes=1 << 12)
    index.extend((), (1, 2, 3, 1, 2))
    index.insert([Phrase((1, 2), (3,))])
    budget = DraftBudget(max_nodes=2, max_depth=2)
    grow((1, 2), budget, shared=index, own=None, calibration=Calibration())


def _correction(calibration: Calibration) -> growth.Correction:
    """Views, not copies: what was measured of own text first, then of others' phrases."""
    rows = slice(TokenSource.PROMPT_LOOKUP, TokenSource.PHRASE + 1)
    return growth.Correction(
        hits=np.frombuffer(calibration.hits).reshape(SHAPE)[rows],
        trials=np.frombuffer(calibration.trials).reshape(SHAPE)[rows],
        estimate_edges=_EDGES[0],
        depth_edges=_EDGES[1],
        weight=PRIOR_TRIALS,
    )


def _grown(nodes: growth.Records) -> Grown:
    parents: list[int] = nodes["parent"].tolist()
    reached: list[float] = nodes["priority"].tolist()
    estimates = [
        reach if parent == ROOT else min(1.0, reach / reached[parent])
        for parent, reach in zip(parents, reached, strict=True)
    ]
    tree = DraftTree(
        token_ids=tuple(nodes["token"].tolist()),
        parents=tuple(parents),
        estimates=tuple(estimates),
        sources=tuple(_SOURCES[own] for own in nodes["own"].tolist()),
    )
    return Grown(tree, nodes["estimate"].tolist())
