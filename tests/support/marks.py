"""Answers that contain marks: cut anywhere, written as tokens of their own, sent back."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken
from tokenizers import Tokenizer as HuggingFaceTokenizer

from draftloop.config import bundled_model
from draftloop.grammars.matching import Vocabulary
from orchestrator.gateway.messages import Message
from orchestrator.tokenizer import Tokenizer


def in_pieces(text: str, cuts: list[int]) -> list[str]:
    """The text, cut at these positions."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:stop] for start, stop in zip(places, places[1:], strict=False)]


class Tokens(NamedTuple):
    """A model's tokens: its tokenizer's folder, as the gateway reads it, and as grammars do."""

    folder: Path
    tokenizer: Tokenizer
    vocabulary: Vocabulary


@functools.cache
def tokens_with(*marks: str, special: bool | None = None) -> Tokens:
    """The bundled tokens, and these marks: letters (None), tokens with letters, or special tokens.

    Reading a tokenizer takes a tenth of a second, so every set of marks is read once.
    """
    if marks and special is None:
        return tokens_with()
    folder = bundled_model("verifier")
    if special is not None:
        added = [AddedToken(mark, special=special, normalized=False) for mark in marks]
        tokenizer = HuggingFaceTokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.add_tokens(added)
        folder = Path(tempfile.mkdtemp(dir=_folder_of_run().name))
        tokenizer.save(str(folder / "tokenizer.json"))
    own = Tokenizer(folder)
    return Tokens(folder, own, Vocabulary(folder, own.vocabulary_size, [0]))


@functools.cache
def _folder_of_run() -> tempfile.TemporaryDirectory[str]:
    """Removed when the process ends."""
    return tempfile.TemporaryDirectory()


def chat_message(**fields: Any) -> Message:
    """A message of a chat; by default one of the assistant."""
    return Message.model_validate({"role": "assistant", **fields})
