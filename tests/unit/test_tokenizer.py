"""Prompts are tokenized whole, whatever training settings a tokenizer.json contains."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer as HuggingFaceTokenizer

from draftloop.config import bundled_model
from orchestrator.tokenizer import LONG_TEXT, Tokenizer

TEXT = "def main():\n    return [place for place in range(100)]\n"


@pytest.fixture(scope="module")
def truncating_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer saved with truncation and padding to eight tokens."""
    folder = tmp_path_factory.mktemp("trained")
    library = HuggingFaceTokenizer.from_file(str(bundled_model("verifier") / "tokenizer.json"))
    library.enable_truncation(max_length=8)
    library.enable_padding(length=8)
    library.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


@pytest.mark.parametrize("text", ["def", TEXT, TEXT * (1 + LONG_TEXT // len(TEXT))], ids=len)
async def test_prompts_are_neither_truncated_nor_padded(
    truncating_tokenizer: Tokenizer, text: str
) -> None:
    plain = Tokenizer(Path(bundled_model("verifier"))).encode(text)
    assert truncating_tokenizer.encode(text) == plain
    assert await truncating_tokenizer.encode_async(text) == plain
    assert truncating_tokenizer.decode(plain) == text
