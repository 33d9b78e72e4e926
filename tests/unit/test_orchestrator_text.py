"""Text as it is streamed: nothing is shown twice, too early, or after a stop text."""

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
def test_streamed_pieces_join_to_the_text(text: str) -> None:
    """The pieces add up to the text, even with characters of several tokens."""
    token_ids = TOKENIZER.encode(text)
    pieces, _ = streamed(token_ids)
    assert "".join(pieces) == TOKENIZER.decode(token_ids)


@given(st.lists(st.integers(1, 4095), max_size=100))
def test_streamed_pieces_of_any_tokens_join_to_their_text(token_ids: list[int]) -> None:
    """The pieces add up to the text, even with broken characters in the middle."""
    pieces, _ = streamed(token_ids)
    assert "".join(pieces) == TOKENIZER.decode(token_ids)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer like those of Llama 2, Mistral and Gemma, with bytes for unknown characters."""
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
def test_streamed_pieces_of_broken_characters_join_to_their_text(token_ids: list[int]) -> None:
    """The runs are longer than the decoded window, with skipped tokens between them."""
    pieces, _ = streamed(token_ids)
    assert "".join(pieces) == TOKENIZER.decode(token_ids)


HALVES = [
    next(token for token in BROKEN if TOKENIZER.token_bytes(token) == byte)
    for byte in (b"\xc3", b"\xa9")
]  # the bytes of é


@given(st.lists(st.sampled_from([*HALVES, *FEW, *TOKENIZER.special_tokens]), max_size=60))
@example([HALVES[0], *TOKENIZER.special_tokens, HALVES[1]])
def test_named_token_separates_the_bytes_around_it(token_ids: list[int]) -> None:
    """The bytes around it form no character, and none is lost."""
    named = TOKENIZER.special_tokens
    stream = TextStream(TOKENIZER, [], (), TextForm(named_tokens=named))
    output = "".join([*(stream.push([token]) for token in token_ids), stream.finish()])
    runs = itertools.groupby(token_ids, key=lambda token: token if token in named else None)
    names = {token: TOKENIZER.token_text(token) for token in named}
    assert output == "".join(
        TOKENIZER.decode(list(run)) if name is None else names[name] * len(list(run))
        for name, run in runs
    )


PARTS = ("the ", "中", "文", "😀", "ab", "é", " ", "ü")


@given(parts=st.lists(st.sampled_from(PARTS), max_size=60), share=st.floats(0, 1))
def test_multi_token_characters_after_a_prompt(
    sentencepiece: Tokenizer, parts: list[str], share: float
) -> None:
    token_ids = sentencepiece.encode("".join(parts), add_special_tokens=False)
    cut = int(share * len(token_ids))
    while cut and cut < len(token_ids) and sentencepiece.continues_character(token_ids[cut]):
        cut -= 1
    stream = TextStream(sentencepiece, token_ids[:cut], ())
    output = "".join([*(stream.push([token]) for token in token_ids[cut:]), stream.finish()])
    assert sentencepiece.decode(token_ids[:cut]) + output == sentencepiece.decode(token_ids)


SEQUENCES = (
    "中".encode(), b"\xe4", b"\xf0\x9f", b"\xef\xbf\xbd", "😀".encode(), b"\x80", b"\xff", b"a"
)  # fmt: skip


@given(
    run=st.lists(st.sampled_from(SEQUENCES), min_size=1, max_size=60).map(b"".join),
    with_special=st.booleans(),
)
def test_invalid_fallback_bytes_become_replacement_characters(
    sentencepiece: Tokenizer, run: bytes, with_special: bool
) -> None:
    """Fallback bytes are either all text together, or one replacement character each.

    What was sent as text before later bytes broke it stays; otherwise the result is that of
    decoding everything.
    """
    byte = {sentencepiece.fallback_byte(token): token for token in range(300)}
    (word,) = sentencepiece.encode("the", add_special_tokens=False)
    token_ids = [word, *(byte[each] for each in run), word]
    if with_special:
        token_ids.insert(2, 1)  # <s>
    stream = TextStream(sentencepiece, [], ())
    output = "".join([*(stream.push([token]) for token in token_ids), stream.finish()])
    text = run[: first_flaw(run)].decode()
    if not text or first_flaw(run) == len(run):
        assert output == sentencepiece.decode(token_ids)
    assert output.removesuffix(" the").rstrip("\ufffd") == f"the{text}".rstrip("\ufffd")


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
def test_broken_characters_are_decoded_in_linear_time(
    sentencepiece: Tokenizer, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes
) -> None:
    """With a bias, a client can make the model emit nothing but broken characters."""
    tokenizer, decoded = TOKENIZER if name == "bundled" else sentencepiece, 0
    byte = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocabulary_size)}
    token_ids = [byte[bytes([each])] for each in data] * (2000 // len(data))
    decode = tokenizer.decode

    def counting_decode(token_ids: list[int]) -> str:
        nonlocal decoded
        decoded += len(token_ids)
        return decode(token_ids)

    monkeypatch.setattr(tokenizer, "decode", counting_decode)
    stream = TextStream(tokenizer, [], ())
    output = "".join([*(stream.push([token]) for token in token_ids), stream.finish()])
    assert decoded < 40 * len(token_ids)
    assert output == decode(token_ids)


@given(st.text("ab\n", min_size=1, max_size=30), st.text("ab", min_size=1, max_size=4))
def test_stop_text_and_following_text_are_never_shown(text: str, stop: str) -> None:
    pieces, stopped = streamed(TOKENIZER.encode(text), (stop,))
    assert stopped == (stop in text)
    assert "".join(pieces) == text.partition(stop)[0]


def test_earliest_of_several_stop_texts_wins() -> None:
    pieces, stopped = streamed(TOKENIZER.encode("one two three"), ("three", "two"))
    assert stopped and "".join(pieces) == "one "


def test_earliest_stop_text_wins_within_one_push() -> None:
    stream = TextStream(TOKENIZER, [], ("three", "two"))
    assert stream.push(TOKENIZER.encode("one two three")) == "one " and stream.stopped


def test_longest_partial_stop_text_is_held_back() -> None:
    stream = TextStream(TOKENIZER, [], ("xyz", "\nUser"))
    assert stream.push(TOKENIZER.encode("a\nUs")) == "a"
    assert stream.push(TOKENIZER.encode("er: b")) == "" and stream.stopped


@given(
    st.lists(st.text("ab", max_size=3), max_size=9),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_only_partial_stop_texts_are_held_back(pieces: list[str], stop: list[str]) -> None:
    stream, text, output = TextStream(TOKENIZER, [], stop), "", ""
    for piece in pieces:
        text += piece
        output += stream.push(TOKENIZER.encode(piece, add_special_tokens=False))
        if any(mark in text for mark in stop):
            assert stream.stopped
            return
        assert text == output + text[len(text) - max(overlap(text, mark) for mark in stop) :]


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=8))
def test_overlap_is_the_longest_suffix_that_begins_the_mark(text: str, mark: str) -> None:
    ends = [n for n in range(len(mark)) if text.endswith(mark[:n])]
    assert overlap(text, mark) == max(ends)


class CountingMark(str):
    """A mark that counts the letters that are compared."""

    seen = 0

    def __getitem__(self, index: Any) -> str:
        self.seen += 1
        return super().__getitem__(index)

    def startswith(self, beginning: Any, *bounds: Any) -> bool:
        self.seen += len(beginning)
        return super().startswith(beginning, *bounds)


def test_stop_texts_are_matched_in_linear_time() -> None:
    """A client may choose the stop text, and the output by a bias, to provoke the worst case."""
    length = 1000
    mark = CountingMark("a" * length + "b" + "a" * length)
    text = "a" * (2 * length)
    assert overlap(text, mark) == length
    assert mark.seen < 10 * len(text)
    mark.seen = 0
    stream = TextStream(TOKENIZER, [], [mark])
    token_ids = TOKENIZER.encode(text, add_special_tokens=False)
    output = "".join(stream.push([token]) for token in token_ids)
    assert output == "a" * length
    assert mark.seen < 10 * len(text), "what is held back is not looked at with every token"


@pytest.mark.parametrize("stop", ["def x", "ret"])
def test_false_start_of_a_stop_text_is_released(stop: str) -> None:
    pieces, stopped = streamed(TOKENIZER.encode("de re"), (stop,))
    assert not stopped and "".join(pieces) == "de re"


def test_stop_text_in_held_back_text_ends_the_text() -> None:
    """Half a character at the end becomes a replacement character, which a stop text may hold."""
    half = TOKENIZER.encode("é")[:1]
    pieces, stopped = streamed([*TOKENIZER.encode("a"), *half], ("\ufffd",))
    assert "".join(pieces) == TOKENIZER.decode(TOKENIZER.encode("a")) and stopped


def test_stop_text_within_min_tokens_is_ignored() -> None:
    """A stop text that begins within the first tokens is ordinary text, whatever follows."""
    token_ids = TOKENIZER.encode("a b a b a b")
    for early in range(len(token_ids)):
        stream = TextStream(TOKENIZER, [], ["b"], min_tokens=early)
        text = "".join(stream.push([token]) for token in token_ids) + stream.finish()
        first = TOKENIZER.decode(token_ids[:early])
        rest = TOKENIZER.decode(token_ids)[len(first) :]
        assert text == first + rest.split("b")[0]
        assert stream.stopped == ("b" in rest)
