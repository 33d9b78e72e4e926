"""The target model's tokenizer, without torch or transformers."""

from __future__ import annotations

import asyncio
import functools
import re
from pathlib import Path

from tokenizers import Tokenizer as HuggingFaceTokenizer

from draftloop.errors import StartupFailure
from draftloop.model_info import vocabulary_fingerprint

# Longer texts and token sequences are converted in a thread, as they would delay other requests.
LONG_TEXT, MANY_TOKENS = 1 << 14, 1 << 12
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
WORD_START = "\u2581"  # sentencepiece's character for a space


class Tokenizer:
    """Text to token ids and back, with the fingerprint that all services must share."""

    def __init__(self, folder: Path) -> None:
        """Raises StartupFailure if `folder` holds no usable tokenizer.json."""
        self.fingerprint = vocabulary_fingerprint(folder, "tokenizer")
        try:
            self._tokenizer = HuggingFaceTokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises bare Exception
            raise StartupFailure(
                f"tokenizer: {folder}/tokenizer.json cannot be read: {error}"
            ) from None
        # Settings left over from training would silently truncate or pad prompts.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        # As GPT-2's, not Llama 2's.
        self.is_byte_level = "ByteLevel(" in repr(self._tokenizer.decoder)

    @property
    def special_tokens(self) -> frozenset[int]:
        """Ids of special tokens, which are left out of texts."""
        return self._special

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens in the tokenizer's vocabulary."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, by default with the special tokens that the tokenizer adds."""
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    async def encode_async(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Like `encode`, but long texts do not block the event loop."""
        if len(text) <= LONG_TEXT:
            return self.encode(text, add_special_tokens=add_special_tokens)
        # A batch of one, because for single texts the library does not release the GIL.
        encode = self._tokenizer.encode_batch
        (found,) = await asyncio.to_thread(encode, [text], add_special_tokens=add_special_tokens)
        return list(found.ids)

    def decode(self, token_ids: list[int]) -> str:
        """Text of a whole sequence, without special tokens."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    async def decode_async(self, token_ids: list[int]) -> str:
        """Like `decode`, but long sequences do not block the event loop."""
        if len(token_ids) <= MANY_TOKENS:
            return self.decode(token_ids)
        return await asyncio.to_thread(self.decode, token_ids)

    async def token_texts(self, token_ids: list[int]) -> list[str]:
        """`token_text` of each token; long sequences do not block the event loop."""
        if len(token_ids) <= MANY_TOKENS:
            return [self.token_text(token) for token in token_ids]
        return await asyncio.to_thread(lambda: [self.token_text(token) for token in token_ids])

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary writes it; empty for an id that has no token."""
        return self._tokenizer.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that the token adds to a text, which need not be whole characters.

        For an added or special token: its name.
        """
        if token_id in self._added:
            return self._added[token_id].encode()
        text = self.token_text(token_id)
        if self.is_byte_level and byte_of_letter().keys() >= set(text):
            return bytes(byte_of_letter()[character] for character in text)
        if (byte := self.fallback_byte(token_id)) is not None:
            return bytes([byte])
        return text.replace(WORD_START, " ").encode()

    def fallback_byte(self, token_id: int) -> int | None:
        """The byte that a byte fallback token (sentencepiece) stands for; None for other tokens."""
        byte = None if self.is_byte_level else BYTE_TOKEN.fullmatch(self.token_text(token_id))
        return int(byte[1], 16) if byte else None

    def changes_text(self, token_id: int) -> bool:
        """Whether the token changes the text."""
        return token_id not in self._special and bool(self.token_text(token_id))

    def continues_character(self, token_id: int) -> bool:
        """Whether the token's first byte continues a UTF-8 character of an earlier token."""
        first = self.token_bytes(token_id)[:1]
        return b"\x80" <= first <= b"\xbf"

    def added_token(self, name: str) -> int | None:
        """Id of the added token of that name; None if there is none."""
        return next((token for token, added in self._added.items() if added == name), None)

    def is_special(self, token_id: int) -> bool:
        """Whether the token is left out of texts."""
        return token_id in self._special


@functools.cache
def byte_of_letter() -> dict[str, int]:
    """Maps the characters of byte-level vocabularies (GPT-2's) to the bytes that they stand for.

    Visible bytes stand for themselves; the others, in order, are the characters from 256 on.
    """
    visible = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = {chr(byte): byte for byte in visible}
    return letters | {chr(256 + index): byte for index, byte in enumerate(hidden)}
