"""Tokens that are banned: always, after certain other tokens, or as an early end of the text.

Like a grammar, bans are part of the law that tokens are sampled from. Both model services apply
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftloop.errors import InvalidInput

MAX_BAD_WORDS = 256
MAX_BAD_WORD_LETTERS = 1024
MAX_BAD_WORD_TOKENS = 64
MAX_SEQUENCES = 2 * MAX_BAD_WORDS  # each at the beginning of a text and after a space


@dataclass(frozen=True, slots=True, kw_only=True)
class Bans:
    """Tokens that are removed from the distribution, whatever the model predicts.

    allowed: the only tokens that may be generated; empty means that all may. sequences: token
    sequences that must not occur in the output; the prompt is not searched. min_tokens: none of the
    tokens in `ends` may be among the first `min_tokens` tokens of the output.
    """

    allowed: tuple[int, ...] = ()
    sequences: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    ends: tuple[int, ...] = ()

    @property
    def any(self) -> bool:
        """Whether anything is banned."""
        return bool(self.allowed or self.sequences or (self.min_tokens and self.ends))

    def validate(self, vocabulary_size: int) -> None:
        """Raises InvalidInput for ids outside the vocabulary, or if no token might be left."""
        in_sequences = [token for sequence in self.sequences for token in sequence]
        for name, tokens in (
            ("allowed_token_ids", self.allowed), ("bad_words", in_sequences), ("ends", self.ends),
        ):  # fmt: skip
            for token in tokens:
                if not 0 <= token < vocabulary_size:
                    rule = f"must hold token ids from 0 to {vocabulary_size - 1}"
                    raise InvalidInput(name, rule, token)
        if not all(self.sequences):
            raise InvalidInput("bad_words", "must not hold an empty sequence", list(self.sequences))
        banned = {sequence[-1] for sequence in self.sequences}
        banned |= set(self.ends if self.min_tokens else ())
        left = set(self.allowed) - banned if self.allowed else vocabulary_size - len(banned)
        if self.any and not left:
            name = "allowed_token_ids" if self.allowed else "bad_words"
            rule = "must leave a token that neither ends a bad word nor, with min_tokens, the text"
            raise InvalidInput(name, rule, "none is left")


NO_BANS = Bans()
