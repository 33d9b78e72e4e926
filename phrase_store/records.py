"""Log records: one batch of phrases, or the word that the namespace was cleared.

A record travels between processes that may be of other versions, so it is checked like a
stranger's: `decode` answers None for everything that it cannot vouch for.

    version u8 | kind u8 | phrases u16 | origin u64 | CRC-32 of all the rest u32
    per phrase: context length u8 | number of tokens u8, top bit: committed
    all contexts and tokens in order, each u16 or u32 as the kind says

All little-endian.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftloop.phrase import MAX_CONTEXT, MAX_PHRASE_TOKENS, Phrase

VERSION = 1
MAX_RECORD_PHRASES = 256
TOKEN_LIMIT = 1 << 31

_NARROW, _WIDE, _CLEARED = 1, 2, 3
_LETTERS = {_NARROW: "H", _WIDE: "I"}
_HEADER = struct.Struct("<BBHQ")
_CHECKSUM = struct.Struct("<I")
_BODY = _HEADER.size + _CHECKSUM.size
_COMMITTED = 0x80


@dataclass(frozen=True, slots=True)
class Batch:
    """Phrases of one request; `origin` tells the processes that know them already."""

    origin: int
    phrases: tuple[Phrase, ...]
    cleared: bool = False  # no phrases: all that came before is void


def is_recordable(phrase: Phrase) -> bool:
    """Whether a record can hold it."""
    return (
        1 <= len(phrase.tokens) <= MAX_PHRASE_TOKENS
        and len(phrase.context) <= MAX_CONTEXT
        and min(phrase.tokens) >= 0
        and max(phrase.tokens) < TOKEN_LIMIT
        and min(phrase.context, default=0) >= 0
        and max(phrase.context, default=0) < TOKEN_LIMIT
    )


def encode_all(origin: int, phrases: Sequence[Phrase]) -> Iterator[bytes]:
    """As few records as hold the phrases; see `encode`."""
    for start in range(0, len(phrases), MAX_RECORD_PHRASES):
        yield encode(origin, phrases[start : start + MAX_RECORD_PHRASES])


def encode(origin: int, phrases: Sequence[Phrase]) -> bytes:
    """At most 256 recordable phrases as one record."""
    shapes = bytearray()
    token_ids: list[int] = []
    for phrase in phrases:
        shapes.append(len(phrase.context))
        shapes.append(len(phrase.tokens) | (_COMMITTED if phrase.committed else 0))
        token_ids += phrase.context
        token_ids += phrase.tokens
    kind = _NARROW if max(token_ids, default=0) < 1 << 16 else _WIDE
    packed = struct.pack(f"<{len(token_ids)}{_LETTERS[kind]}", *token_ids)
    return _sealed(kind, origin, len(phrases), bytes(shapes) + packed)


def encode_cleared() -> bytes:
    """The record that tells followers to forget what came before."""
    return _sealed(_CLEARED, 0, 0, b"")


def _sealed(kind: int, origin: int, count: int, body: bytes) -> bytes:
    header = _HEADER.pack(VERSION, kind, count, origin)
    return header + _CHECKSUM.pack(zlib.crc32(body, zlib.crc32(header))) + body


def decode(record: bytes) -> Batch | None:
    """The batch, or None where the record is foreign, damaged, cut short or of a newer version."""
    if len(record) < _BODY:
        return None
    version, kind, count, origin = _HEADER.unpack_from(record)
    (checksum,) = _CHECKSUM.unpack_from(record, _HEADER.size)
    actual = zlib.crc32(record[_BODY:], zlib.crc32(record[: _HEADER.size]))
    if version != VERSION or checksum != actual:
        return None
    if kind == _CLEARED:
        return Batch(origin, (), cleared=True)
    phrases = _phrases(kind, count, record)
    return None if phrases is None else Batch(origin, phrases)


def _phrases(kind: int, count: int, record: bytes) -> tuple[Phrase, ...] | None:
    letter = _LETTERS.get(kind)
    shapes = record[_BODY : _BODY + 2 * count]
    if letter is None or len(shapes) != 2 * count:
        return None
    contexts = shapes[::2]
    lengths = [shape & ~_COMMITTED for shape in shapes[1::2]]
    if max(contexts, default=0) > MAX_CONTEXT or max(lengths, default=1) > MAX_PHRASE_TOKENS:
        return None
    layout = struct.Struct(f"<{sum(contexts) + sum(lengths)}{letter}")
    start = _BODY + 2 * count
    if min(lengths, default=1) < 1 or len(record) != start + layout.size:
        return None
    token_ids: tuple[int, ...] = layout.unpack_from(record, start)
    if kind == _WIDE and max(token_ids, default=0) >= TOKEN_LIMIT:
        return None
    return _cut(token_ids, contexts, lengths, shapes[1::2])


def _cut(
    token_ids: tuple[int, ...], contexts: bytes, lengths: list[int], flags: bytes
) -> tuple[Phrase, ...]:
    phrases: list[Phrase] = []
    start = 0
    for context, length, flag in zip(contexts, lengths, flags, strict=True):
        middle = start + context
        end = middle + length
        phrases.append(Phrase(token_ids[start:middle], token_ids[middle:end], flag >= _COMMITTED))
        start = end
    return tuple(phrases)
