"""The run of a text: how many of its last tokens phrases would have proposed."""

from __future__ import annotations

import numpy as np

from draftloop.phrase import MAX_CONTEXT
from draftloop.runtime.compiling import compiled
from phrase_store.counts import MAX_CONTINUATIONS
from phrase_store.growth import CONTINUATION, MAX_BLENDED, blend
from phrase_store.table import Integers, Table, Totals, Words


@compiled
def follow(
    own_words: Words,
    own_state: Totals,
    own_decay: float,
    shared_words: Words,
    shared_state: Totals,
    shared_decay: float,
    text: Integers,
    begin: int,
    run: int,
) -> int:
    """The run of `text`, if that of text[:begin] is `run`. Does not change the tables."""
    own = Table(own_words, own_state, own_decay)
    shared = Table(shared_words, shared_state, shared_decay)
    row = np.empty(2 * MAX_CONTINUATIONS, CONTINUATION)
    blended = np.empty(MAX_BLENDED, CONTINUATION)
    recent = np.empty(MAX_CONTEXT, np.int32)
    for position in range(begin, text.size):
        length = min(position, MAX_CONTEXT)
        for back in range(length):
            recent[back] = text[position - 1 - back]
        found = blend(own, shared, recent, length, row, blended)
        best = 0
        for other in range(1, found):
            if blended[other].weight > blended[best].weight:
                best = other
        run = run + 1 if found > 0 and blended[best].token == text[position] else 0
    return run
