"""Log records: a batch of phrases, or the message that the namespace was cleared.

    version u8 | kind u8 | phrases u16 | origin u64 | CRC-32 of everything else u32
    per phrase: context length u8 | number of tokens u8, top bit: committed
    all contexts and tokens in order, each u16 or u32 depending on the kind

All numbers are little-endian. `unpack` reads records.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftloop.phrase import MAX_CONTEXT, MAX_PHRASE_TOKENS, Phrase

VERSION = 1
NARROW, WIDE, CLEARED = 1, 2, 3
COMMITTED = 0x80
ORIGIN_AT, CHECKSUM_AT, BODY_AT = 4, 12, 16

MAX_RECORD_PHRASES = 256
TOKEN_LIMIT = 1 << 31
ORIGIN_LIMIT = 1 << 64

_LETTERS = {NARROW: "H", WIDE: "I"}
_HEADER = struct.Struct("<BBHQ")
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Batch:
    """Phrases of one request. By `origin`, the process that wrote them recognizes its own."""

    origin: int
    phrases: tuple[Phrase, ...]
    cleared: bool = False  # the namespace was cleared; there are no phrases then


def is_recordable(phrase: Phrase) -> bool:
    """Whether a record can hold the phrase."""
    return (
        1 <= len(phrase.tokens) <= MAX_PHRASE_TOKENS
        and len(phrase.context) <= MAX_CONTEXT
        and min(phrase.tokens) >= 0
        and max(phrase.tokens) < TOKEN_LIMIT
        and min(phrase.context, default=0) >= 0
        and max(phrase.context, default=0) < TOKEN_LIMIT
    )


def new_origin() -> int:
    """A random origin, which no other request has."""
    return secrets.randbits(64)


def joined(phrases: Sequence[Phrase]) -> list[Phrase]:
    """Merges committed phrases of one request where one continues the other.

    This saves space: every round adds only a few tokens, each time with eight tokens of context.
    """
    whole: list[Phrase] = []
    open_run = -1  # index of the committed phrase that the next one may continue
    for phrase in phrases:
        before = whole[open_run] if open_run >= 0 else None
        if phrase.committed and before is not None and _continues(before, phrase):
            tokens = before.tokens + phrase.tokens
            whole[open_run] = Phrase(before.context, tokens)
            continue
        if phrase.committed:
            open_run = len(whole)
        whole.append(phrase)
    return whole


def _continues(before: Phrase, after: Phrase) -> bool:
    text = before.context + before.tokens
    fits = len(before.tokens) + len(after.tokens) <= MAX_PHRASE_TOKENS
    return fits and after.context == text[-MAX_CONTEXT:]


def encode_all(origin: int, phrases: Sequence[Phrase]) -> Iterator[bytes]:
    """The phrases in as few records as possible; see `encode`."""
    for start in range(0, len(phrases), MAX_RECORD_PHRASES):
        yield encode(origin, phrases[start : start + MAX_RECORD_PHRASES])


def encode(origin: int, phrases: Sequence[Phrase]) -> bytes:
    """One record with at most 256 recordable phrases; `origin` has 64 bits."""
    shapes = bytearray()
    token_ids: list[int] = []
    for phrase in phrases:
        shapes.append(len(phrase.context))
        shapes.append(len(phrase.tokens) | (COMMITTED if phrase.committed else 0))
        token_ids += phrase.context
        token_ids += phrase.tokens
    kind = NARROW if max(token_ids, default=0) < 1 << 16 else WIDE
    packed = struct.pack(f"<{len(token_ids)}{_LETTERS[kind]}", *token_ids)
    return _sealed(kind, origin, len(phrases), bytes(shapes) + packed)


def encode_cleared(origin: int) -> bytes:
    """The record that tells readers to forget all phrases before it.

    A process that knows `origin` as its own ignores it, having cleared its index already.
    """
    return _sealed(CLEARED, origin, 0, b"")


def _sealed(kind: int, origin: int, count: int, body: bytes) -> bytes:
    header = _HEADER.pack(VERSION, kind, count, origin)
    return header + _CHECKSUM.pack(zlib.crc32(body, zlib.crc32(header))) + body
