"""The table of continuation counts.

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

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftloop.runtime.compiling import compilable, compiled
from phrase_store.lanes import LANES

WAYS = LANES  # entries in a bucket
BUCKET_WORDS = 4 * WAYS
BUCKET_BYTES = 4 * BUCKET_WORDS
TOKEN, COUNT, TICK = WAYS, 2 * WAYS, 3 * WAYS  # where each field starts in its bucket

UNIT = 1024.0  # counts are stored in units of 1/1024, so that all words are integers
MAX_UNITS = 2.0**32 - 1

# Entries per bucket in use from which a growing table splits one. With more, single buckets
# overflow: with 8, one in 30 phrases is lost early, with 4 one in 20,000.
MAX_MEAN_ENTRIES = 4
# A growing table is doubled at most so often, since every time takes a bit of the 32 of a
# fingerprint. It begins with at least so many buckets: it ends with that number times a power of
# two, and memory beyond that stays unused.
MAX_DOUBLINGS, MIN_FIRST_BUCKETS = 8, 16

# Indices into a table's state.
STATE_SIZE = 6
CLOCK, ENTRIES, EVICTIONS, FIRST_BUCKETS, DOUBLINGS, UNSPLIT = range(STATE_SIZE)

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


@compilable
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
def split_next(table: Table) -> None:
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
def is_too_full(table: Table) -> bool:
    """Whether a bucket should be split, and the memory has room for that."""
    buckets = buckets_in_use(table)
    once_all_are_split = buckets + table.state[UNSPLIT]
    has_room = once_all_are_split * BUCKET_WORDS <= table.words.size
    return bool(has_room and table.state[ENTRIES] > MAX_MEAN_ENTRIES * buckets)


@compiled
def decayed(table: Table, place: int) -> float:
    """The current decayed count of the entry whose fingerprint is at `place`.

    Ticks are 32 bits wide: an entry untouched for 2**32 tokens looks young again.
    """
    age = (table.state[CLOCK] - np.int64(table.words[place + TICK])) & 0xFFFFFFFF
    return float(table.words[place + COUNT]) / (UNIT + table.decay * UNIT * float(age))
