"""`TextStream`: text as it grows, with nothing shown twice, too early, or after a stop text."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from draftloop.config import bundled_model
from draftloop.request import TextForm
from orchestrator.text import TextStream, overlap
from orchestrator.tokenizer import Tokenizer
from tests.support.sentencepiece import save_sentencepiece_tokenizer

TOKENIZER = Tokenizer(Path(bundled_model("verifier")))


def streamed(token_ids: list[int], stop: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    stream = TextStream(TOKENIZER, [], stop)
    pieces = [stream.push([token]) for token in token_ids]
    return [*pieces, stream.finish()], stream.stopped


@given(st.text(max_size=200))
def test_pieces_are_the_text(text: str) -> None:
    """Including characters of several tokens."""
    token_ids = TOKENIZER.encode(text)
    pieces, _ = streamed(token_ids)
    assert "".join(pieces) == TOKENIZER.decode(token_ids)


@given(st.lists(st.integers(1, 4095), max_size=100))
def test_pieces_of_any_tokens_are_their_text(token_ids: list[int]) -> None:
    """Including broken characters in the middle."""
    pieces, _ = streamed(token_ids)
    assert "".join(pieces) == TOKENIZER.decode(token_ids)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer as in Llama 2, Mistral and Gemma: bytes for what the vocabulary lacks."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    save_sentencepiece_tokenizer(folder)
    return Tokenizer(folder)


BROKEN = tuple(
    token
    for token in range(1, TOKENIZER.vocabulary_size)
    if any(byte > 127 for byte in TOKENIZER.token_bytes(token))
)
FEW = [token for token in BROKEN if len(TOKENIZER.token_bytes(token)) == 1][::9]


@given(st.lists(st.sampled_from([*BROKEN, *FEW * 4, *TOKENIZER.special_tokens]), max_size=200))
def test_pieces_of_broken_characters_are_their_text(token_ids: list[int]) -> None:
    """They may be longer than the part that is decoded again.

    Special tokens, which are left out of the text, may stand between them.
    """
    pieces, _ = streamed(token_ids)
    assert "".join(pieces) == TOKENIZER.decode(token_ids)


HALVES = [
    next(token for token in BROKEN if TOKENIZER.token_bytes(token) == byte)
    for byte in (b"\xc3", b"\xa9")
]  # of é


@given(st.lists(st.sampled_from([*HALVES, *FEW, *TOKENIZER.special_tokens]), max_size=60))
@example([HALVES[0], *TOKENIZER.special_tokens, HALVES[1]])
def test_a_named_token_parts_the_bytes_around_it(token_ids: list[int]) -> None:
    """The bytes on its two sides form no character together, and none of them is lost."""
    named = TOKENIZER.special_tokens
    stream = TextStream(TOKENIZER, [], (), TextForm(named_tokens=named))
    told = "".join([*(stream.push([token]) for token in token_ids), stream.finish()])
    runs = itertools.groupby(token_ids, key=lambda token: token if token in named else None)
    names = {token: TOKENIZER.token_text(token) for token in named}
    assert told == "".join(
        TOKENIZER.decode(list(run)) if name is None else names[name] * len(list(run))
        for name, run in runs
    )


PARTS = ("the ", "中", "文", "😀", "ab", "é", " ", "ü")


@given(parts=st.lists(st.sampled_from(PARTS), max_size=60), share=st.floats(0, 1))
def test_characters_of_several_tokens_behind_a_prompt(
    sentencepiece: Tokenizer, parts: list[str], share: float
) -> None:
    token_ids = sentencepiece.encode("".join(parts), add_special_tokens=False)
    cut = int(share * len(token_ids))
    while cut and cut < len(token_ids) and sentencepiece.continues_character(token_ids[cut]):
        cut -= 1
    stream = TextStream(sentencepiece, token_ids[:cut], ())
    told = "".join([*(stream.push([token]) for token in token_ids[cut:]), stream.finish()])
    assert sentencepiece.decode(token_ids[:cut]) + told == sentencepiece.decode(token_ids)


SEQUENCES = (
    "中".encode(), b"\xe4", b"\xf0\x9f", b"\xef\xbf\xbd", "😀".encode(), b"\x80", b"\xff", b"a"
)  # fmt: skip


@given(
    run=st.lists(st.sampled_from(SEQUENCES), min_size=1, max_size=60).map(b"".join),
    silent=st.booleans(),
)
def test_bytes_that_are_no_text(sentencepiece: Tokenizer, run: bytes, silent: bool) -> None:
    """A run of fallback bytes is text if all of it is; otherwise each byte is a replacement sign.

    Text that was shown before later bytes broke the run stays. In all other cases the result is
    that of decoding all tokens at once.
    """
    byte = {sentencepiece.fallback_byte(token): token for token in range(300)}
    (word,) = sentencepiece.encode("the", add_special_tokens=False)
    token_ids = [word, *(byte[each] for each in run), word]
    if silent:
        token_ids.insert(2, 1)  # <s>
    stream = TextStream(sentencepiece, [], ())
    told = "".join([*(stream.push([token]) for token in token_ids), stream.finish()])
    text = run[: first_flaw(run)].decode()
    if not text or first_flaw(run) == len(run):
        assert told == sentencepiece.decode(token_ids)
    assert told.removesuffix(" the").rstrip("\ufffd") == f"the{text}".rstrip("\ufffd")


def first_flaw(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as flaw:
        return flaw.start
    return len(data)


@pytest.mark.parametrize("name", ["bundled", "sentencepiece"])
@pytest.mark.parametrize(
    "data", [b"\x80", b"\xe4", b"\xef\xbf\xbd", b"\xf0\x9f", b"\x80\xe4\xb8\xad"]
)
def test_no_broken_character_makes_tokens_be_decoded_again_and_again(
    sentencepiece: Tokenizer, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes
) -> None:
    """A client's logit bias can make the model write nothing else."""
    tokenizer, decoded = TOKENIZER if name == "bundled" else sentencepiece, 0
    byte = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocabulary_size)}
    token_ids = [byte[bytes([each])] for each in data] * (2000 // len(data))
    decode = tokenizer.decode

    def counted(some: list[int]) -> str:
        nonlocal decoded
        decoded += len(some)
        return decode(some)

    monkeypatch.setattr(tokenizer, "decode", counted)
    stream = TextStream(tokenizer, [], ())
    told = "".join([*(stream.push([token]) for token in token_ids), stream.finish()])
    assert decoded < 40 * len(token_ids)
    assert told == decode(token_ids)


@given(st.text("ab\n", min_size=1, max_size=30), st.text("ab", min_size=1, max_size=4))
def test_a_stop_text_and_what_follows_never_show(text: str, stop: str) -> None:
    pieces, stopped = streamed(TOKENIZER.encode(text), (stop,))
    assert stopped == (stop in text)
    assert "".join(pieces) == text.partition(stop)[0]


def test_the_earliest_of_several_stop_texts_wins() -> None:
    pieces, stopped = streamed(TOKENIZER.encode("one two three"), ("three", "two"))
    assert stopped and "".join(pieces) == "one "


def test_the_earliest_wins_where_several_come_at_once() -> None:
    stream = TextStream(TOKENIZER, [], ("three", "two"))
    assert stream.push(TOKENIZER.encode("one two three")) == "one " and stream.stopped


def test_the_longest_beginning_of_any_stop_text_is_held_back() -> None:
    stream = TextStream(TOKENIZER, [], ("xyz", "\nUser"))
    assert stream.push(TOKENIZER.encode("a\nUs")) == "a"
    assert stream.push(TOKENIZER.encode("er: b")) == "" and stream.stopped


@given(
    st.lists(st.text("ab", max_size=3), max_size=9),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_only_what_may_begin_a_stop_text_is_held_back(pieces: list[str], stop: list[str]) -> None:
    stream, text, told = TextStream(TOKENIZER, [], stop), "", ""
    for piece in pieces:
        text += piece
        told += stream.push(TOKENIZER.encode(piece, add_special_tokens=False))
        if any(mark in text for mark in stop):
            assert stream.stopped
            return
        assert text == told + text[len(text) - max(overlap(text, mark) for mark in stop) :]


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=8))
def test_an_end_that_begins_a_mark_is_the_longest_one(text: str, mark: str) -> None:
    ends = [n for n in range(len(mark)) if text.endswith(mark[:n])]
    assert overlap(text, mark) == max(ends)


class Counted(str):
    """A stop text that counts how many of its letters are compared."""

    seen = 0

    def __getitem__(self, place: Any) -> str:
        self.seen += 1
        return super().__getitem__(place)

    def startswith(self, beginning: Any, *within: Any) -> bool:
        self.seen += len(beginning)
        return super().startswith(beginning, *within)


def test_no_mark_makes_a_letter_be_compared_again_and_again() -> None:
    """A client could choose the stop text, and by a bias the output, to cause this."""
    length = 1000
    mark = Counted("a" * length + "b" + "a" * length)
    text = "a" * (2 * length)
    assert overlap(text, mark) == length
    assert mark.seen < 10 * len(text)
    mark.seen = 0
    stream = TextStream(TOKENIZER, [], [mark])
    token_ids = TOKENIZER.encode(text, add_special_tokens=False)
    told = "".join(stream.push([token]) for token in token_ids)
    assert told == "a" * length
    assert mark.seen < 10 * len(text), "what is held back is not looked at with every token"


@pytest.mark.parametrize("stop", ["def x", "ret"])
def test_a_false_start_of_a_stop_text_is_released(stop: str) -> None:
    pieces, stopped = streamed(TOKENIZER.encode("de re"), (stop,))
    assert not stopped and "".join(pieces) == "de re"


def test_a_stop_text_in_what_was_held_back_ends_the_text() -> None:
    """Half a character at the end becomes U+FFFD, which a stop text may contain."""
    half = TOKENIZER.encode("é")[:1]
    pieces, stopped = streamed([*TOKENIZER.encode("a"), *half], ("\ufffd",))
    assert "".join(pieces) == TOKENIZER.decode(TOKENIZER.encode("a")) and stopped


def test_what_comes_early_stops_nothing() -> None:
    """A stop text that begins within the first `min_tokens` tokens is text, whatever follows."""
    token_ids = TOKENIZER.encode("a b a b a b")
    for early in range(len(token_ids)):
        stream = TextStream(TOKENIZER, [], ["b"], min_tokens=early)
        text = "".join(stream.push([token]) for token in token_ids) + stream.finish()
        first = TOKENIZER.decode(token_ids[:early])
        rest = TOKENIZER.decode(token_ids)[len(first) :]
        assert text == first + rest.split("b")[0]
        assert stream.stopped == ("b" in rest)
