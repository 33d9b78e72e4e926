"""Bytes of tokens, and log-probabilities in both of OpenAI's forms."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models

from draftloop.config import bundled_model
from draftloop.logprobs import TokenLogprobs
from draftloop.request import TextForm
from orchestrator.gateway.formats import CompletionFormat
from orchestrator.gateway.logprobs import ChatLogprobs, CompletionLogprobs
from orchestrator.text import TextStream
from orchestrator.tokenizer import Tokenizer
from tests.support.sentencepiece import save_sentencepiece_tokenizer

TOKENIZER = Tokenizer(bundled_model("verifier"))
EMOJI = "a🙂é"


def entries(text: str) -> list[TokenLogprobs]:
    return [TokenLogprobs(token, -0.5, ((token, -0.5),)) for token in TOKENIZER.encode(text)]


@given(st.text(max_size=40))
def test_token_bytes_join_to_the_bytes_of_the_text(text: str) -> None:
    data = b"".join(TOKENIZER.token_bytes(token) for token in TOKENIZER.encode(text))
    assert data == text.encode()


def test_token_bytes_of_a_sentencepiece_vocabulary(tmp_path_factory: object) -> None:
    """Spaces are written as ▁, bytes without a token of their own as <0xNN>."""
    vocabulary = {"<unk>": 0, "▁on": 1, "<0xF0>": 2, "e": 3}
    library = HuggingFaceTokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    folder = tmp_path_factory.mktemp("sentencepiece")  # type: ignore[attr-defined]
    library.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer(folder)
    assert [tokenizer.token_bytes(token) for token in (1, 2, 3)] == [b" on", b"\xf0", b"e"]


def test_bytes_of_a_special_token_are_its_name() -> None:
    assert TOKENIZER.token_bytes(0) == b"<|endoftext|>" and TOKENIZER.is_special(0)
    assert not TOKENIZER.is_special(5)


def test_text_offsets_count_characters() -> None:
    result = CompletionLogprobs(TOKENIZER).of([*entries(EMOJI), *entries("\nx")])
    assert result["text_offset"][0] == 0 and result["text_offset"][-1] == len(EMOJI) + 1
    assert result["text_offset"] == sorted(result["text_offset"])
    assert len(result["tokens"]) == len(result["token_logprobs"]) == len(result["top_logprobs"])


def test_hidden_special_tokens_do_not_advance_the_offset() -> None:
    result = CompletionLogprobs(TOKENIZER).of([TokenLogprobs(0, -0.5), *entries("x")])
    assert result["text_offset"] == [0, 0]


def test_shown_special_tokens_advance_the_offset() -> None:
    # Named special tokens are part of the text, so offsets count them.
    form = TextForm(named_tokens=frozenset({0}))
    prefix = [
        TokenLogprobs(0, -0.5),
        *entries("x"),
        TokenLogprobs(166, -0.5),
        TokenLogprobs(0, -0.5),
    ]
    result = CompletionLogprobs(TOKENIZER, form).of([*prefix, *entries("y")])
    name = len("<|endoftext|>")
    assert result["text_offset"] == [0, name, name + 1, name + 2, 2 * name + 2]


@given(st.lists(st.integers(1, TOKENIZER.vocabulary_size - 1), max_size=30))
@example([166, 87])  # half a character, then a letter
def test_text_offsets_are_positions_in_the_text(token_ids: list[int]) -> None:
    """A broken character counts as what the text has in its place."""
    parts = CompletionLogprobs(TOKENIZER)
    result = parts.of([TokenLogprobs(token, -0.5, ()) for token in token_ids])
    before = b""
    for token, offset in zip(token_ids, result["text_offset"], strict=True):
        if not TOKENIZER.continues_character(token):
            assert offset == len(before.decode("utf-8", "replace"))
        before += TOKENIZER.token_bytes(token)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        # The client's text names the token, or the tokenizer has added it.
        ("a<|endoftext|>b", [0, 1, 14]),
        ("ab", [0, 1, 1]),
    ],
)
def test_offsets_in_an_echo_are_places_in_its_text(
    text: str, offsets: list[int], named: bool
) -> None:
    form = TextForm(named_tokens=frozenset({0} if named else ()))
    parts = CompletionLogprobs(TOKENIZER, form)
    (a,), (b,) = entries("a"), entries("b")
    echoed = parts.of_prompt(a.token_id, [TokenLogprobs(0, -0.5), b], 0, text)
    assert echoed["text_offset"] == offsets
    own = parts.of([TokenLogprobs(0, -0.5), b])
    end = len(text)  # the output's own tokens are shown as its form says
    assert own["text_offset"] == [end, end + named * len("<|endoftext|>")]


def test_an_echo_lacks_the_space_that_sentencepiece_adds(tmp_path: Path) -> None:
    save_sentencepiece_tokenizer(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    first, *rest = tokenizer.encode("the the")
    told = [TokenLogprobs(token, -0.5) for token in rest]
    written = CompletionLogprobs(tokenizer).of_prompt(first, told, 0, "the the")
    assert written["tokens"] == [" the", " the"] and written["text_offset"] == [0, 3]


def test_an_echo_without_text_has_log_probabilities_in_a_stream_too() -> None:
    form = CompletionFormat([""])  # the prompt is a special token, which is not shown
    (chunk,) = form.opening(0, {"tokens": ["<|endoftext|>"]})
    assert chunk["logprobs"] and not chunk["text"]
    assert form.opening(0, None) == []


def test_text_offsets_continue_across_chunks() -> None:
    parts, whole = CompletionLogprobs(TOKENIZER), CompletionLogprobs(TOKENIZER)
    offsets = [offset for entry in entries(EMOJI) for offset in parts.of([entry])["text_offset"]]
    assert offsets == whole.of(entries(EMOJI))["text_offset"]


def test_partial_characters_are_shown_as_bytes() -> None:
    result = CompletionLogprobs(TOKENIZER).of(entries("🙂"))
    assert len(result["tokens"]) > 1
    assert all(token.startswith("bytes:\\x") for token in result["tokens"])


def test_chosen_token_is_always_in_top_logprobs() -> None:
    entry = TokenLogprobs(5, -9.0, ((6, -0.1), (7, -0.2)))
    (top,) = CompletionLogprobs(TOKENIZER).of([entry])["top_logprobs"]
    assert len(top) == 3 and top[TOKENIZER.token_bytes(5).decode()] == -9.0


def test_chat_logprobs_have_bytes() -> None:
    content = ChatLogprobs(TOKENIZER).of(entries("🙂"))["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "🙂"
    assert all(entry["top_logprobs"][0]["bytes"] == entry["bytes"] for entry in content)


def test_infinite_log_probability_is_finite_in_json() -> None:
    entry = TokenLogprobs(5, float("-inf"))
    assert ChatLogprobs(TOKENIZER).of([entry])["content"][0]["logprob"] == -9999.0


@given(st.text(alphabet=st.sampled_from("a🙂é中\n👩‍👩‍👧"), max_size=12), st.integers(1, 4))
def test_streamed_pieces_join_to_the_text(text: str, size: int) -> None:
    """Rounds commit several tokens: wherever they end, no broken character is shown."""
    token_ids = TOKENIZER.encode(text)
    stream = TextStream(TOKENIZER, [], ())
    pieces = [stream.push(token_ids[at : at + size]) for at in range(0, len(token_ids), size)]
    assert "".join([*pieces, stream.finish()]) == text
    assert "\ufffd" not in "".join(pieces)
