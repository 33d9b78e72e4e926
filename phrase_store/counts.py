"""The table of continuation counts, and the compiled loops that count.

The table is an array of 32-bit words in buckets of 16 entries. A bucket stores its entries as 16
fingerprints, 16 tokens, 16 counts and 16 ticks, which are four cache lines; looking up an unknown
context reads only the first. A context's bucket and fingerprint come from one 64-bit hash of its
tokens, taken backwards from its end. Buckets fill from the front and entries are only ever
overwritten, so the first fingerprint of 0 ends a bucket.

A growing table uses as many buckets as its entries need: the system allocates memory when it is
first written, so few phrases take little. If the buckets in use are a quarter full, the last one
that is not split yet becomes two (linear hashing, Litwin 1980). The next of a fingerprint's highest
bits says to which of them its entry goes, so the context need not be known.
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
BUCKET_BYTES = 4 * BUCKET_WORDS
TOKEN, COUNT, TICK = WAYS, 2 * WAYS, 3 * WAYS  # where each field starts in its bucket
MAX_CONTINUATIONS = 8  # of one context, and children of one node

UNIT = 1024.0  # counts are stored in units of 1/1024, so that all words are integers
MAX_UNITS = 2.0**32 - 1

# Entries per bucket in use from which a growing table splits one. With more, single buckets
# overflow: with 8, one in 30 phrases is lost early, with 4 one in 20,000.
MAX_MEAN_ENTRIES = 4
# A growing table is doubled at most so often, since every time takes a bit of the 32 of a
# fingerprint. It begins with at least so many buckets, since it cannot use less memory than that at
# the end: its final number is the first one times a power of two.
MAX_DOUBLINGS, MIN_FIRST_BUCKETS = 8, 16

# Indices into a table's state.
CLOCK, ENTRIES, EVICTIONS, FIRST_BUCKETS, DOUBLINGS, UNSPLIT = range(6)
STATE_SIZE = 6

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
    """`words` has room for all buckets, and `state` totals by the names above.

    The table began with FIRST_BUCKETS buckets, which have been doubled DOUBLINGS times. Those from
    UNSPLIT on have been split once more.
    A count is weighted by 1 / (1 + decay x age), its age in tokens inserted since.
    """

    words: Words
    state: Totals
    decay: float


def empty_table(max_bytes: int, decay: float, *, grows: bool = False) -> Table:
    """A table of at most `max_bytes`; one that `grows` begins with a small part of them."""
    buckets = max_bytes // BUCKET_BYTES
    doublings = (buckets // MIN_FIRST_BUCKETS).bit_length() - 1 if grows else 0
    state = np.zeros(STATE_SIZE, np.int64)
    state[FIRST_BUCKETS] = state[UNSPLIT] = buckets >> max(0, min(doublings, MAX_DOUBLINGS))
    return Table(np.zeros(buckets * BUCKET_WORDS, np.uint32), state, decay)


def buckets_in_use(table: Table) -> int:
    """How many buckets the table uses now."""
    state = table.state
    return int(2 * (state[FIRST_BUCKETS] << state[DOUBLINGS]) - state[UNSPLIT])


@compiled
def mixed(key: np.uint64, token: int) -> np.uint64:
    """The key of the context extended by one earlier token (a step of splitmix64)."""
    bits = (key + GOLDEN) ^ np.uint64(token)
    bits = (bits ^ (bits >> np.uint64(30))) * FIRST_FACTOR
    bits = (bits ^ (bits >> np.uint64(27))) * SECOND_FACTOR
    return bits ^ (bits >> np.uint64(31))


@compiled
def fingerprint_of(key: np.uint64) -> np.uint32:
    """The lower half of the key, but never 0, which marks an empty entry."""
    return np.uint32(max(key & LOW_WORD, np.uint64(1)))


@compiled
def _high_bits(fingerprint: np.uint32, count: int) -> np.uint64:
    """The highest `count` bits of a fingerprint."""
    return (np.uint64(fingerprint) << np.uint64(count)) >> WORD_BITS


@compiled
def bucket_of(table: Table, key: np.uint64) -> int:
    """Index of the first word of the context's bucket."""
    doublings = table.state[DOUBLINGS]
    first = ((key >> WORD_BITS) * np.uint64(table.state[FIRST_BUCKETS])) >> WORD_BITS
    fingerprint = fingerprint_of(key)
    bucket = (first << np.uint64(doublings)) | _high_bits(fingerprint, doublings)
    if bucket >= np.uint64(table.state[UNSPLIT]):
        bucket = (first << np.uint64(doublings + 1)) | _high_bits(fingerprint, doublings + 1)
    return int(bucket) * BUCKET_WORDS


@compiled
def _split_next(table: Table) -> None:
    """Distributes the last unsplit bucket's entries between its two successors.

    These lie at its double index and behind it: where there was nothing yet, or a bucket that has
    been split before. The first bucket becomes its own first successor.
    """
    words, state = table.words, table.state
    state[UNSPLIT] -= 1
    start = state[UNSPLIT] * BUCKET_WORDS
    ends = 2 * start, 2 * start + BUCKET_WORDS
    lower, upper = ends
    for place in range(start, start + WAYS):
        fingerprint = words[place]
        if fingerprint == 0:
            break
        if _high_bits(fingerprint, state[DOUBLINGS] + 1) & np.uint64(1):
            to = upper
            upper += 1
        else:
            to = lower
            lower += 1
        for field in range(0, BUCKET_WORDS, WAYS):
            words[to + field] = words[place + field]
    for place in range(lower, ends[0] + WAYS):
        words[place] = 0
    for place in range(upper, ends[1] + WAYS):
        words[place] = 0
    if start == 0:
        state[DOUBLINGS] += 1
        state[UNSPLIT] = state[FIRST_BUCKETS] << state[DOUBLINGS]


@compiled
def _is_too_full(table: Table) -> bool:
    """Whether a bucket should be split, and the memory has room for that."""
    state = table.state
    doubled = 2 * (state[FIRST_BUCKETS] << state[DOUBLINGS])
    has_room = doubled * BUCKET_WORDS <= table.words.size
    return bool(has_room and state[ENTRIES] > MAX_MEAN_ENTRIES * (doubled - state[UNSPLIT]))


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
def count_run(
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
        while _is_too_full(table):
            _split_next(table)
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
