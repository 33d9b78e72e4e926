"""Builds matchers of grammars over a vocabulary, and checks that a grammar can be followed."""

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
    """A model's tokens, in the form that grammars need."""

    def __init__(self, folder: Path, size: int, stop_token_ids: Sequence[int]) -> None:
        """Raises ValueError for a tokenizer that llguidance cannot use."""
        self.size = size
        text = (folder / TOKENIZER).read_text(encoding="utf-8")
        self.tokenizer = LLTokenizer(_without_leading_space(text), size, list(stop_token_ids))

    def matcher(self, grammar: Grammar) -> LLMatcher:
        """A matcher at the beginning of the output, tried by letting a copy consume a first token.

        The trial is needed because many grammars turn out to be too large only then. It may take
        minutes or gigabytes, or end the process; see `draftloop.grammars.trial`. Raises
        InvalidInput for a grammar that cannot be followed.
        """
        matcher = LLMatcher(self.tokenizer, grammar_text(grammar), log_level=0)
        trial = matcher.deep_copy()
        trial.consume_token(int(self.mask(trial).argmax()))
        if trial.is_error():
            raise refusal(grammar, trial.get_error())
        return matcher

    def mask(self, matcher: LLMatcher) -> NDArray[np.uint8]:
        """1 for each token that may come next by `fill`, else 0."""
        rows = allocate_token_bitmask(1, self.size)
        self.fill(matcher, rows, 0)
        allowed: NDArray[np.uint8] = bits(rows)[0]
        return allowed

    def fill(self, matcher: LLMatcher, rows: NDArray[np.int32], row: int) -> None:
        """Sets the bits of the tokens that may come next in `rows[row]`.

        If only one text may follow, llguidance allows the first token of its tokenization. If that
        text contains the name of a special token, the tokenization yields that token, which has no
        text and so does not match. In that case, the first token of the text spelled out is allowed
        instead.
        """
        fill_next_token_bitmask(matcher, rows, row)
        (words,) = rows[row].nonzero()
        if len(words) != 1 or (word := int(rows[row, words[0]]) & 0xFFFFFFFF) & (word - 1):
            return
        token = 32 * int(words[0]) + word.bit_length() - 1
        if self.tokenizer.is_special_token(token) and not matcher.validate_tokens([token]):
            text = matcher.compute_ff_bytes().decode("utf-8", "ignore")  # empty at the end
            for spelled in self.tokenizer.greedy_tokenize(text)[:1]:
                rows[row] = 0
                rows.view(np.uint32)[row, spelled // 32] = 1 << spelled % 32


def _without_leading_space(tokenizer: str) -> str:
    """The contents of a tokenizer.json, changed so that it puts no space before a text.

    llguidance tokenizes text that must come next, which is in the middle of an output. Raises
    ValueError if the contents are not a JSON object.
    """
    config = json.loads(tokenizer)
    if not isinstance(config, dict):
        raise ValueError(f"{TOKENIZER} is not a JSON object")
    for part in _pre_tokenizer_steps(config.get("pre_tokenizer")):
        if part.get("type") == "ByteLevel":
            part["add_prefix_space"] = False
    return json.dumps(config)


def _pre_tokenizer_steps(config: Any) -> Iterator[dict[str, Any]]:
    """The steps of a pre-tokenizer, including nested ones."""
    if isinstance(config, dict):
        yield config
        for inner in config.get("pretokenizers") or ():
            yield from _pre_tokenizer_steps(inner)


def bits(rows: NDArray[np.int32]) -> NDArray[np.uint8]:
    """The bits of each row as an array with one element per token."""
    return np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")
