"""Turns what a client excludes from the output into bans on tokens."""

from __future__ import annotations

from collections.abc import Iterator

from draftloop.bans import (
    MAX_BAD_WORD_LETTERS,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    NO_BANS,
    Bans,
)
from draftloop.errors import InvalidInput
from draftloop.request import GenerationParameters, check_token_count, check_token_ids
from orchestrator.tokenizer import Tokenizer

TokenSequences = tuple[tuple[int, ...], ...]


def read_bans(
    parameters: GenerationParameters,
    stop_token_ids: frozenset[int],
    vocabulary_size: int,
    bad_words: TokenSequences,
) -> Bans:
    """The bans that the request `parameters` asks for.

    `stop_token_ids`: the token ids that end the output. `bad_words`: token sequences, from
    `read_bad_words`. Raises InvalidInput for the first broken rule.
    """
    if parameters.sampling.bans != NO_BANS:
        rule = "must be left out; say allowed_token_ids, bad_words or min_tokens instead"
        raise InvalidInput("sampling.bans", rule, "some")
    if parameters.allowed_token_ids:
        check_token_count("allowed_token_ids", len(parameters.allowed_token_ids), vocabulary_size)
        check_token_ids("allowed_token_ids", parameters.allowed_token_ids, vocabulary_size)
    bans = Bans(
        allowed=parameters.allowed_token_ids,
        sequences=bad_words,
        min_tokens=parameters.min_tokens,
        ends=tuple(sorted(stop_token_ids)),
    )
    if not bans.any:
        return NO_BANS
    if parameters.sampling.grammar is not None:
        raise InvalidInput(_field_name(parameters), "must not be given with a grammar", "both")
    return bans


def read_bad_words(words: tuple[str, ...], tokenizer: Tokenizer) -> TokenSequences:
    """The token sequences of the words. Raises InvalidInput for the first broken rule."""
    return tuple(dict.fromkeys(_tokenized_words(words, tokenizer)))


def _tokenized_words(words: tuple[str, ...], tokenizer: Tokenizer) -> Iterator[tuple[int, ...]]:
    """Each word as tokenized at the beginning of a text and after a space."""
    if len(words) > MAX_BAD_WORDS:
        rule = f"must have at most {MAX_BAD_WORDS} texts"
        raise InvalidInput("bad_words", rule, f"{len(words)} texts")
    for index, word in enumerate(words):
        if not (stripped := word.lstrip(" ")):
            raise InvalidInput(f"bad_words[{index}]", "must not be empty", word)
        if len(word) > MAX_BAD_WORD_LETTERS:  # before all of it is tokenized
            rule = f"must have at most {MAX_BAD_WORD_LETTERS} characters"
            raise InvalidInput(f"bad_words[{index}]", rule, f"{len(word)} characters")
        for text in (stripped, f" {stripped}"):
            sequence = tokenizer.encode(text, add_special_tokens=False)
            if len(sequence) > MAX_BAD_WORD_TOKENS:
                rule = f"must have at most {MAX_BAD_WORD_TOKENS} tokens"
                raise InvalidInput(f"bad_words[{index}]", rule, f"{len(sequence)} tokens")
            yield tuple(sequence)


def _field_name(parameters: GenerationParameters) -> str:
    if parameters.allowed_token_ids:
        return "allowed_token_ids"
    return "bad_words" if parameters.bad_words else "min_tokens"
