"""Answers that contain marks: cut anywhere, written as tokens of their own, sent back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as HuggingFaceTokenizer

from draftloop.config import bundled_model
from orchestrator.gateway.messages import Message
from orchestrator.tokenizer import Tokenizer


def in_pieces(text: str, cuts: list[int]) -> list[str]:
    """The text, cut at these positions."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:stop] for start, stop in zip(places, places[1:], strict=False)]


def tokenizer_with(folder: Path, *marks: str, special: bool) -> Tokenizer:
    """The bundled tokenizer with these tokens added."""
    tokenizer = HuggingFaceTokenizer.from_file(str(bundled_model("verifier") / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in marks])
    tokenizer.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


def chat_message(**fields: Any) -> Message:
    """A message of a chat; by default one of the assistant."""
    return Message.model_validate({"role": "assistant", **fields})
