"""The table of continuation counts, and the compiled loops that count.

The table is an array of 32-bit words in buckets of 16 entries. A bucket stores its entries as 16
fingerprints, 16 tokens, 16 counts and 16 ticks, which are four cache lines; looking up an unknown
context reads only the first. A context's bucket and fingerprint come from one 64-bit hash of its
tokens, taken backwards from its end. Buckets fill from the front and entries are only ever
overwritten, so the first fingerprint of 0 ends a bucket.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftloop.phrase import MAX_CONTEXT
from draftloop.runtime.compiling import compiled
from phrase_store.lanes import LANES, count_bits, equal_lanes, least_lane, lowest_bit, prefetch

WAYS = LANES  # entries in a bucket
ALL_WAYS = np.uint32((1 << WAYS) - 1)
BUCKET_WORDS = 4 * WAYS
TOKEN, COUNT, TICK = WAYS, 2 * WAYS, 3 * WAYS  # where each field starts in its bucket
MAX_CONTINUATIONS = 8  # of one context, and children of one node

UNIT = 1024.0  # counts are stored in units of 1/1024, so that all words are integers
MAX_UNITS = 2.0**32 - 1

CLOCK, ENTRIES, EVICTIONS = 0, 1, 2  # indices into a table's state

SEED = np.uint64(0x5851F42D4C957F2D)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
LOW_WORD = np.uint64(0xFFFFFFFF)
WORD_BITS = np.uint64(32)

Floats = NDArray[np.float64]
Integers = NDArray[np.int32]
Words = NDArray[np.uint32]
Totals = NDArray[np.int64]


class Table(NamedTuple):
    """`words` holds the buckets, `state` three totals: CLOCK, ENTRIES and EVICTIONS.

    A count is weighted by 1 / (1 + decay x age), its age in tokens inserted since.
    """

    words: Words
    state: Totals
    decay: float


@compiled
def mixed(key: np.uint64, token: int) -> np.uint64:
    """The key of the context extended by one earlier token (a step of splitmix64)."""
    bits = (key + GOLDEN) ^ np.uint64(token)
    bits = (bits ^ (bits >> np.uint64(30))) * FIRST_FACTOR
    bits = (bits ^ (bits >> np.uint64(27))) * SECOND_FACTOR
    return bits ^ (bits >> np.uint64(31))


@compiled
def bucket_of(words: Words, key: np.uint64) -> int:
    """Index of the first word of the context's bucket."""
    buckets = np.uint64(words.size // BUCKET_WORDS)
    return int(((key >> WORD_BITS) * buckets) >> WORD_BITS) * BUCKET_WORDS


@compiled
def fingerprint_of(key: np.uint64) -> np.uint32:
    """The lower half of the key, but never 0, which marks an empty entry."""
    return np.uint32(max(key & LOW_WORD, np.uint64(1)))


@compiled
def decayed(table: Table, place: int) -> float:
    """The current decayed count of the entry whose fingerprint is at `place`.

    Ticks are 32 bits wide: an entry untouched for 2**32 tokens looks young again.
    """
    age = (table.state[CLOCK] - np.int64(table.words[place + TICK])) & 0xFFFFFFFF
    return float(table.words[place + COUNT]) / (UNIT + table.decay * UNIT * float(age))


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
    start = bucket_of(table.words, key)
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
def _touch(words: Words, text: Integers, first: int, position: int) -> None:
    """Prefetches the buckets of all contexts of text[position] into the processor's caches.

    Counting visits the buckets one after the other, and would wait for memory at each of them.
    """
    key = SEED
    for earlier in range(position - 1, max(first, position - MAX_CONTEXT) - 1, -1):
        key = mixed(key, text[earlier])
        start = bucket_of(words, key)
        for line in range(start, start + BUCKET_WORDS, WAYS):
            prefetch(words, line)


@compiled
def count_run(
    table: Table, text: Integers, first: int, begin: int, end: int, weight: float
) -> None:
    """Counts text[begin:end] under contexts of up to 8 tokens that start at `first` or later.

    The clock advances by one per token.
    """
    if begin < end:
        _touch(table.words, text, first, begin)
    for position in range(begin, end):
        if position + 1 < end:
            _touch(table.words, text, first, position + 1)
        table.state[CLOCK] += 1
        key = SEED
        for earlier in range(position - 1, max(first, position - MAX_CONTEXT) - 1, -1):
            key = mixed(key, text[earlier])
            count_one(table, key, text[position], weight)


@compiled
def count_runs(
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
    """Counts runs number begin to end - 1; run i is text[starts[i]:starts[i + 1]].

    The first contexts[i] tokens of a run are only context. Takes a table's parts because Python
    code calls it: numba converts plain arrays in a fraction of the time that a tuple takes.
    """
    table = Table(words, state, decay)
    for run in range(begin, end):
        first = starts[run]
        count_run(table, text, first, first + contexts[run], starts[run + 1], weights[run])
