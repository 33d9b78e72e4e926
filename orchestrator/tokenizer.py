"""The target model's tokenizer, without torch or transformers."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer as HuggingFaceTokenizer

from draftloop.errors import StartupFailure
from draftloop.model_info import vocabulary_fingerprint


class Tokenizer:
    """Text to token ids and back, with the fingerprint that all services must share."""

    def __init__(self, folder: Path) -> None:
        """Raises StartupFailure where `folder` holds no usable tokenizer.json."""
        self.fingerprint = vocabulary_fingerprint(folder)
        try:
            self._tokenizer = HuggingFaceTokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises bare Exception
            raise StartupFailure(
                f"tokenizer: {folder}/tokenizer.json cannot be read: {error}"
            ) from None

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids that have a text."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with the special tokens that the tokenizer itself adds."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, token_ids: list[int]) -> str:
        """Text of a whole sequence, special tokens left out."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))
