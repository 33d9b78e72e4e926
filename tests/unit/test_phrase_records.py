"""Log records are decoded as they were encoded, or not at all."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftloop.calibration import Calibration
from draftloop.phrase import MAX_CONTEXT, MAX_PHRASE_TOKENS, Phrase
from draftloop.tree import DraftBudget
from phrase_store.index import PhraseIndex, grow
from phrase_store.records import (
    MAX_RECORD_PHRASES,
    TOKEN_LIMIT,
    VERSION,
    Batch,
    encode,
    encode_all,
    encode_cleared,
    is_recordable,
    joined,
)
from phrase_store.unpack import count_into, decode, phrases_of, unpack, warm_up

origins = st.integers(0, 2**64 - 1)
narrow = st.integers(0, 2**16 - 1)
wide = st.integers(0, TOKEN_LIMIT - 1)


def phrases_over(tokens: st.SearchStrategy[int]) -> st.SearchStrategy[Phrase]:
    return st.builds(
        Phrase,
        st.lists(tokens, max_size=MAX_CONTEXT).map(tuple),
        st.lists(tokens, min_size=1, max_size=MAX_PHRASE_TOKENS).map(tuple),
        st.booleans(),
    )


phrases = phrases_over(narrow) | phrases_over(wide)
batches = st.lists(phrases, max_size=8)
SAMPLE = encode(7, [Phrase((1, 2), (3, 4, 5)), Phrase((), (70_000,), committed=False)])


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm_up()


def with_checksum(header: bytes, body: bytes) -> bytes:
    """Any content with a correct checksum."""
    return header + struct.pack("<I", zlib.crc32(body, zlib.crc32(header))) + body


@settings(deadline=None)
@given(origins, batches)
def test_encoded_phrases_round_trip(origin: int, phrases: list[Phrase]) -> None:
    assert all(is_recordable(phrase) for phrase in phrases)
    assert decode(encode(origin, phrases)) == Batch(origin, tuple(phrases))


@given(st.lists(phrases_over(narrow), max_size=4), st.integers(0, 700))
@settings(max_examples=20, deadline=None)
def test_phrases_are_packed_into_as_few_records_as_possible(
    extra: list[Phrase], count: int
) -> None:
    phrases = [Phrase((), (number,)) for number in range(count)] + extra
    records = list(encode_all(1, phrases))
    decoded = [decode(record) for record in records]
    assert [phrase for batch in decoded if batch for phrase in batch.phrases] == phrases
    assert len(records) == -(-len(phrases) // MAX_RECORD_PHRASES)


def test_small_vocabularies_take_two_bytes_a_token() -> None:
    small = encode(1, [Phrase((1,) * 8, (2**16 - 1,) * 64)])
    large = encode(1, [Phrase((1,) * 8, (2**16,) * 64)])
    assert len(large) - len(small) == 72 * 2


def test_cleared_record_round_trips() -> None:
    batch = decode(encode_cleared(9))
    assert batch == Batch(9, (), cleared=True)


@pytest.mark.parametrize("record", [SAMPLE, encode_cleared(9)], ids=["phrases", "cleared"])
def test_truncated_record_is_rejected(record: bytes) -> None:
    assert all(decode(record[:length]) is None for length in range(len(record)))
    assert decode(record + b"\0") is None


@settings(deadline=None)
@given(origins, batches, st.data())
def test_truncated_record_of_any_batch_is_rejected(
    origin: int, phrases: list[Phrase], data: st.DataObject
) -> None:
    record = encode(origin, phrases)
    assert decode(record[: data.draw(st.integers(0, len(record) - 1))]) is None


@pytest.mark.parametrize("record", [SAMPLE, encode_cleared(9)], ids=["phrases", "cleared"])
def test_flipped_bits_never_change_a_phrase(record: bytes) -> None:
    for bit in range(8 * len(record)):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode(bytes(damaged)) in (None, decode(record))


@pytest.mark.parametrize("version", [0, VERSION + 1, 255])
def test_other_versions_are_rejected_despite_a_valid_checksum(version: int) -> None:
    assert decode(with_checksum(bytes([version]) + SAMPLE[1:12], SAMPLE[16:])) is None
    assert decode(with_checksum(SAMPLE[:12], SAMPLE[16:])) is not None


record_lists = st.lists(st.tuples(st.integers(0, 3), batches | st.none()), max_size=6)


@settings(deadline=None)
@given(record_lists, st.sets(st.integers(0, 3), max_size=2))
def test_batched_decoding_matches_one_by_one(
    sent: list[tuple[int, list[Phrase] | None]], own_origins: set[int]
) -> None:
    """None stands for a clearing, which voids everything before it, of any origin."""
    encoded = [encode_cleared(origin) if phrases is None else encode(origin, phrases)
               for origin, phrases in sent]  # fmt: skip
    expected: list[Phrase] = []
    cleared = False
    for origin, phrases in sent:
        if phrases is None:
            expected = []
            cleared |= origin not in own_origins
        elif origin not in own_origins:
            expected += phrases
    unpacked = unpack([b"damaged", *encoded, SAMPLE[:-1]], own_origins)
    assert unpacked.skipped == 2 and unpacked.cleared == cleared
    assert list(phrases_of(unpacked.phrases)) == expected


def test_predictions_from_the_log_count_less_than_text() -> None:
    index = PhraseIndex(max_bytes=1 << 16)
    phrases = [Phrase((1,), (6,)), Phrase((1,), (5,), committed=False)]
    count_into(index, unpack([encode(1, phrases)]).phrases)
    budget = DraftBudget(max_nodes=1, max_depth=1)
    calibration = Calibration()
    draft = grow((1,), budget, shared=index, own=None, calibration=calibration)
    assert draft.tree.token_ids == (6,)


def phrases_of_rounds(text: list[int], lengths: list[int]) -> list[Phrase]:
    """The phrases of a request with these round lengths: its text, and wrong branches."""
    phrases: list[Phrase] = []
    end = 0
    for length in lengths:
        begin, end = end, end + length
        context = tuple(text[max(0, begin - MAX_CONTEXT) : begin])
        phrases.append(Phrase(context, tuple(text[begin:end])))
        if length % 2:
            phrases.append(Phrase(context, (7, 8), committed=False))
    return phrases


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.data())
def test_rounds_of_a_request_are_joined_into_one_run(
    lengths: list[int], data: st.DataObject
) -> None:
    """An index learns the same from the run: readers of the log count what its writer counted."""
    count = sum(lengths)
    text = data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    separate = phrases_of_rounds(text, lengths)
    joined_phrases = joined(separate)
    runs = [phrase for phrase in joined_phrases if phrase.committed]
    assert [token for run in runs for token in run.tokens] == text
    full = [len(run.tokens) + len(after.tokens) > MAX_PHRASE_TOKENS - 30
            for run, after in zip(runs, runs[1:], strict=False)]  # fmt: skip
    assert all(full) and all(is_recordable(phrase) for phrase in joined_phrases)
    wrong = [phrase for phrase in separate if not phrase.committed]
    assert [phrase for phrase in joined_phrases if not phrase.committed] == wrong
    if wrong:
        return  # other orders may lead to other places in a table
    one, other = PhraseIndex(max_bytes=1 << 16), PhraseIndex(max_bytes=1 << 16)
    one.insert(separate)
    other.insert(joined_phrases)
    assert (one.table.words == other.table.words).all()


def test_only_consecutive_phrases_are_joined() -> None:
    phrases = [Phrase((1, 2), (3,)), Phrase((9,), (9,)), Phrase((1, 2, 3), (4,))]
    assert joined(phrases) == phrases  # other text came in between
    assert joined([Phrase((), (3,)), Phrase((3,), (4,))]) == [Phrase((), (3, 4))]
    predicted = Phrase((1, 2, 3), (4,), committed=False)
    assert joined([phrases[0], predicted]) == [phrases[0], predicted]
    assert joined([]) == []


def test_trailing_bytes_after_the_last_phrase_are_rejected() -> None:
    # Extra bytes after the last phrase make a record invalid.
    assert decode(with_checksum(SAMPLE[:12], SAMPLE[16:] + bytes(4))) is None


@settings(max_examples=500, deadline=None)
@given(
    st.binary(max_size=80)
    | st.builds(
        with_checksum,
        st.builds(
            struct.Struct("<BBHQ").pack,
            st.just(VERSION), st.integers(0, 4), st.integers(0, 3), origins,
        ),
        st.binary(max_size=40),
    )
)  # fmt: skip
def test_arbitrary_bytes_are_rejected_or_decode_to_valid_phrases(record: bytes) -> None:
    """A checksum is not a signature: records with a correct one must still be within the limits."""
    batch = decode(record)
    assert batch is None or all(is_recordable(phrase) for phrase in batch.phrases)


@pytest.mark.parametrize(
    "phrase",
    [
        Phrase((), ()),
        Phrase((), (1,) * (MAX_PHRASE_TOKENS + 1)),
        Phrase((1,) * (MAX_CONTEXT + 1), (1,)),
        Phrase((), (-1,)),
        Phrase((), (TOKEN_LIMIT,)),
        Phrase((-1,), (1,)),
        Phrase((TOKEN_LIMIT,), (1,)),
    ],
)
def test_unrecordable_phrases_are_recognized(phrase: Phrase) -> None:
    assert not is_recordable(phrase)
