"""The compiled loops that count which token followed the last 1 to 8 tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftloop.phrase import MAX_CONTEXT
from draftloop.runtime.compiling import compiled
from phrase_store.lanes import count_bits, equal_lanes, least_lane, lowest_bit, prefetch
from phrase_store.table import (
    BUCKET_WORDS,
    CLOCK,
    COUNT,
    ENTRIES,
    EVICTIONS,
    MAX_UNITS,
    SEED,
    TICK,
    TOKEN,
    UNIT,
    WAYS,
    Floats,
    Integers,
    Table,
    Totals,
    Words,
    bucket_of,
    decayed,
    fingerprint_of,
    is_too_full,
    mixed,
    split_next,
)

MAX_CONTINUATIONS = 8  # of one context, and children of one node
ALL_WAYS = np.uint32((1 << WAYS) - 1)


@compiled
def _way_for(table: Table, start: int, siblings: np.uint32) -> Any:
    """The way for a new entry: an empty one, otherwise that of the least decayed count.

    `siblings`: mask of the context's own ways. A context that already has MAX_CONTINUATIONS
    replaces one of its own.
    """
    empty = equal_lanes(table.words, start, 0)
    complete = count_bits(siblings) >= MAX_CONTINUATIONS
    if empty and not complete:
        table.state[ENTRIES] += 1
        return lowest_bit(empty)
    table.state[EVICTIONS] += 1
    return least_lane(
        table.words,
        start + COUNT,
        start + TICK,
        np.uint32(table.state[CLOCK] & 0xFFFFFFFF),
        np.float32(table.decay),
        siblings if complete else ALL_WAYS,
    )


@compiled
def count_one(table: Table, key: np.uint64, token: int, weight: float) -> None:
    """Counts one continuation; an existing entry's age is reset."""
    start = bucket_of(table, key)
    fingerprint = fingerprint_of(key)
    siblings = equal_lanes(table.words, start, fingerprint)
    found = siblings & equal_lanes(table.words, start + TOKEN, token)
    if found:
        place = start + int(lowest_bit(found))
        units = (decayed(table, place) + weight) * UNIT
    else:
        place = start + int(_way_for(table, start, siblings))
        units = weight * UNIT
        table.words[place] = fingerprint
        table.words[place + TOKEN] = token
    table.words[place + COUNT] = np.uint32(min(units, MAX_UNITS))
    table.words[place + TICK] = table.state[CLOCK]


@compiled
def _touch(table: Table, text: Integers, first: int, position: int) -> None:
    """Prefetches the buckets of all contexts of text[position] into the processor's caches.

    Counting visits the buckets one after the other, and would wait for memory at each of them.
    """
    key = SEED
    for earlier in range(position - 1, max(first, position - MAX_CONTEXT) - 1, -1):
        key = mixed(key, text[earlier])
        start = bucket_of(table, key)
        for line in range(start, start + BUCKET_WORDS, WAYS):
            prefetch(table.words, line)


@compiled
def count_phrase(
    table: Table, text: Integers, first: int, begin: int, end: int, weight: float
) -> None:
    """Counts text[begin:end] under contexts of up to 8 tokens that start at `first` or later.

    The clock advances by one per token.
    """
    if begin < end:
        _touch(table, text, first, begin)
    for position in range(begin, end):
        if position + 1 < end:
            _touch(table, text, first, position + 1)
        while is_too_full(table):
            split_next(table)
        table.state[CLOCK] += 1
        key = SEED
        for earlier in range(position - 1, max(first, position - MAX_CONTEXT) - 1, -1):
            key = mixed(key, text[earlier])
            count_one(table, key, text[position], weight)


@compiled
def count_phrases(
    words: Words,
    state: Totals,
    decay: float,
    text: Integers,
    starts: Totals,
    contexts: Totals,
    weights: Floats,
    begin: int,
    end: int,
) -> None:
    """Counts phrases number begin to end - 1; phrase i is text[starts[i]:starts[i + 1]].

    The first contexts[i] tokens of a phrase are only context. Takes a table's parts because Python
    code calls it: numba converts plain arrays in a fraction of the time that a tuple takes.
    """
    table = Table(words, state, decay)
    for phrase in range(begin, end):
        first, stop = starts[phrase], starts[phrase + 1]
        count_phrase(table, text, first, first + contexts[phrase], stop, weights[phrase])
