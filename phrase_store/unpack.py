"""Bulk decoding of log records for the index; `records` describes the format.

Records may come from processes of other versions, and anybody may write to the log, so invalid
records are skipped and counted. The loops are compiled and run without the GIL, because a process
may read millions of records after its start while it already serves requests.
"""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftloop.phrase import MAX_CONTEXT, MAX_PHRASE_TOKENS, Phrase
from draftloop.runtime.compiling import compiled
from phrase_store import records
from phrase_store.index import PREDICTED_WEIGHT, PhraseIndex
from phrase_store.records import Batch
from phrase_store.table import Integers, Totals

REFUSED = 0  # in place of the kind of a record that is foreign, damaged, truncated or too new
# Phrases counted under one lock.
COUNTED_AT_ONCE = 128
# Pause of a thread that takes the lock many times in a row: without it, the thread would have it
# again before anybody who waits for it is awake.
PAUSE_S = 0.00002

_VERSION, _NARROW, _WIDE, _CLEARED = (
    records.VERSION, records.NARROW, records.WIDE, records.CLEARED
)  # fmt: skip
_CHECKSUM, _BODY = records.CHECKSUM_AT, records.BODY_AT
_COMMITTED = records.COMMITTED
_NOTHING_KNOWN: frozenset[int] = frozenset()

Bytes = NDArray[np.uint8]


class PackedPhrases(NamedTuple):
    """Concatenated phrases; phrase i is text[starts[i]:starts[i + 1]].

    Its first contexts[i] tokens are its context.
    """

    text: Integers
    starts: Totals
    contexts: Totals
    committed: NDArray[np.bool_]


class Unpacked(NamedTuple):
    """The contents of some records: whether to forget everything first, then these phrases."""

    cleared: bool
    phrases: PackedPhrases
    skipped: int  # number of invalid records


def _checksums() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0xEDB88320), table >> 1)
    return table.astype(np.uint32)


_CRC_TABLE = _checksums()


@compiled
def _number(data: Bytes, start: int, size: int) -> np.uint64:
    """Reads a little-endian number of `size` bytes."""
    value = np.uint64(0)
    for place in range(start + size - 1, start - 1, -1):
        value = (value << np.uint64(8)) | np.uint64(data[place])
    return value


@compiled
def _checksum(data: Bytes, start: int, end: int) -> np.uint64:
    """CRC-32 of a record without its checksum field."""
    crc = np.uint32(0xFFFFFFFF)
    for place in range(start, end):
        if start + _CHECKSUM <= place < start + _BODY:
            continue
        crc = _CRC_TABLE[(crc ^ data[place]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return np.uint64(crc ^ np.uint32(0xFFFFFFFF))


@compiled
def _kind(data: Bytes, start: int, end: int, token_limit: int) -> int:
    """The kind of the record data[start:end] after a complete check, or REFUSED."""
    if end - start < _BODY or data[start] != _VERSION:
        return REFUSED
    if _number(data, start + _CHECKSUM, 4) != _checksum(data, start, end):
        return REFUSED
    kind = int(data[start + 1])
    if kind == _CLEARED:
        return kind
    size = 2 if kind == _NARROW else 4
    count = int(_number(data, start + 2, 2))
    first = start + _BODY + 2 * count
    if (kind != _NARROW and kind != _WIDE) or first > end:
        return REFUSED
    tokens = 0
    for place in range(start + _BODY, first, 2):
        context, length = int(data[place]), int(data[place + 1]) & ~_COMMITTED
        if context > MAX_CONTEXT or length < 1 or length > MAX_PHRASE_TOKENS:
            return REFUSED
        tokens += context + length
    if first + size * tokens != end:
        return REFUSED
    for place in range(first, end, size):
        if _number(data, place, size) >= token_limit:
            return REFUSED
    return kind


@compiled
def _judge(
    data: Bytes, ends: Totals, kinds: Integers, origins: NDArray[np.uint64], token_limit: int
) -> None:
    """Writes kind and origin of every record to `kinds` and `origins`."""
    start = 0
    for record in range(ends.size):
        end = ends[record]
        kinds[record] = _kind(data, start, end, token_limit)
        if kinds[record] != REFUSED:
            origins[record] = _number(data, start + 4, 8)
        start = end


@compiled
def _unpack(
    data: Bytes,
    ends: Totals,
    kinds: Integers,
    text: Integers,
    starts: Totals,
    contexts: Totals,
    committed: NDArray[np.bool_],
) -> int:
    """Writes the phrases of all records of a kind with phrases; returns how many there are."""
    count = 0
    filled = 0
    start = 0
    for record in range(ends.size):
        end = ends[record]
        if kinds[record] == _NARROW or kinds[record] == _WIDE:
            size = 2 if kinds[record] == _NARROW else 4
            shapes = start + _BODY
            token = shapes + 2 * int(_number(data, start + 2, 2))
            for shape in range(shapes, token, 2):
                contexts[count] = data[shape]
                committed[count] = data[shape + 1] >= _COMMITTED
                length = int(data[shape]) + (int(data[shape + 1]) & ~_COMMITTED)
                for _ in range(length):
                    text[filled] = np.int32(_number(data, token, size))
                    token += size
                    filled += 1
                count += 1
                starts[count] = filled
        start = end
    return count


def unpack(
    encoded: Sequence[bytes],
    known_origins: Container[int] = _NOTHING_KNOWN,
    token_limit: int = records.TOKEN_LIMIT,
) -> Unpacked:
    """Decodes records, ignoring those whose origin is in `known_origins`.

    Records with token ids of at least `token_limit`, which the model does not have, are invalid.
    """
    data = np.frombuffer(b"".join(encoded), np.uint8)
    ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))
    kinds, origins = np.zeros(len(encoded), np.int32), np.zeros(len(encoded), np.uint64)
    _judge(data, ends, kinds, origins, token_limit)
    skipped = int(np.count_nonzero(kinds == REFUSED))
    clears = np.flatnonzero(kinds == _CLEARED)
    known = [place for place, origin in enumerate(origins.tolist()) if origin in known_origins]
    kinds[known] = REFUSED
    cleared = bool(np.any(kinds == _CLEARED))  # without clearings by known origins
    if clears.size:
        kinds[: clears[-1] + 1] = REFUSED
    most = data.size // 2 + 1  # every token and every phrase takes at least two bytes
    packed = PackedPhrases(
        np.empty(most, np.int32), np.zeros(most + 1, np.int64), np.empty(most, np.int64),
        np.empty(most, np.bool_),
    )  # fmt: skip
    count = _unpack(data, ends, kinds, *packed)
    starts = packed.starts[: count + 1]
    kept = PackedPhrases(
        packed.text[: starts[-1]], starts, packed.contexts[:count], packed.committed[:count]
    )
    return Unpacked(cleared, kept, skipped)


def decode(record: bytes) -> Batch | None:
    """The batch in one record; None if the record is invalid."""
    unpacked = unpack([record])
    if unpacked.skipped:
        return None
    origin = int.from_bytes(record[records.ORIGIN_AT : records.CHECKSUM_AT], "little")
    return Batch(origin, phrases_of(unpacked.phrases), unpacked.cleared)


def phrases_of(packed: PackedPhrases) -> tuple[Phrase, ...]:
    """The phrases as `Phrase` values."""
    text, starts, contexts = packed.text.tolist(), packed.starts.tolist(), packed.contexts.tolist()
    return tuple(
        Phrase(tuple(text[start : start + context]), tuple(text[start + context : end]), committed)
        for start, end, context, committed in zip(
            starts, starts[1:], contexts, packed.committed.tolist(), strict=False
        )
    )


def count_into(index: PhraseIndex, packed: PackedPhrases) -> None:
    """Counts phrases; releases the index to other threads every few hundred microseconds."""
    weights = np.where(packed.committed, 1.0, PREDICTED_WEIGHT)
    for begin in range(0, weights.size, COUNTED_AT_ONCE):
        end = min(begin + COUNTED_AT_ONCE, weights.size)
        index.count(packed.text, packed.starts, packed.contexts, weights, begin, end)
        if end < weights.size:
            time.sleep(PAUSE_S)


def warm_up() -> None:
    """Compiles the loops, or loads them from the cache; takes seconds the first time."""
    decode(records.encode(0, [Phrase((1,), (2,))]))
