"""Makes what follows a grammar over a vocabulary, and finds out whether it can be followed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from draftloop.grammar import Grammar
from draftloop.grammars.text import grammar_text, refusal
from draftloop.model_info import TOKENIZER


class Vocabulary:
    """A model's tokens, as grammars see them."""

    def __init__(self, folder: Path, size: int, stop_token_ids: Sequence[int]) -> None:
        """Raises ValueError for a tokenizer that grammars cannot be followed with."""
        self.size = size
        text = (folder / TOKENIZER).read_text(encoding="utf-8")
        self.tokenizer = LLTokenizer(_within_texts(text), size, list(stop_token_ids))

    def matcher(self, grammar: Grammar) -> LLMatcher:
        """At the beginning of a text, tried by a first token: many are too large only for that.

        May take minutes, gigabytes or the process itself; see `draftloop.grammars.trial`. Raises
        InvalidInput where it means nothing.
        """
        matcher = LLMatcher(self.tokenizer, grammar_text(grammar), log_level=0)
        trial = matcher.deep_copy()
        rows = allocate_token_bitmask(1, self.size)
        self.fill(trial, rows, 0)
        trial.consume_token(int(bits(rows).argmax()))
        if trial.is_error():
            raise refusal(grammar, trial.get_error())
        return matcher

    def fill(self, matcher: LLMatcher, rows: NDArray[np.int32], row: int) -> None:
        """Sets the bits of the tokens that may come next.

        Where only one text may, llguidance allows the first token of what the tokenizer makes of
        it. A text that has the name of a special token becomes that token, which has no letters and
        does not fit: then it is spelled.
        """
        fill_next_token_bitmask(matcher, rows, row)
        (words,) = rows[row].nonzero()
        if len(words) != 1 or (word := int(rows[row, words[0]]) & 0xFFFFFFFF) & (word - 1):
            return
        token = 32 * int(words[0]) + word.bit_length() - 1
        if self.tokenizer.is_special_token(token) and not matcher.validate_tokens([token]):
            text = matcher.compute_ff_bytes().decode("utf-8", "ignore")  # none at the end
            for spelled in self.tokenizer.greedy_tokenize(text)[:1]:
                rows[row] = 0
                rows.view(np.uint32)[row, spelled // 32] = 1 << spelled % 32


def _within_texts(tokenizer: str) -> str:
    """A tokenizer.json that puts no space before a text.

    llguidance asks it for the tokens of what has to come, which is the middle of one. Raises
    ValueError where it is no JSON object.
    """
    said = json.loads(tokenizer)
    if not isinstance(said, dict):
        raise ValueError(f"{TOKENIZER} is not a JSON object")
    for part in _parts(said.get("pre_tokenizer")):
        if part.get("type") == "ByteLevel":
            part["add_prefix_space"] = False
    return json.dumps(said)


def _parts(said: Any) -> Iterator[dict[str, Any]]:
    """The steps that something done to texts consists of."""
    if isinstance(said, dict):
        yield said
        for inner in said.get("pretokenizers") or ():
            yield from _parts(inner)


def bits(rows: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Of each row one for every token."""
    return np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")
