"""Tokens that may not come: never, behind certain others, or too early to end the text.

As a grammar is, they are a part of the law that tokens are sampled from, on both model services.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftloop.errors import InvalidInput

MAX_BAD_WORDS = 256
MAX_BAD_WORD_LETTERS = 1024
MAX_BAD_WORD_TOKENS = 64
MAX_SEQUENCES = 2 * MAX_BAD_WORDS  # each as it begins a text, and as it comes behind a space


@dataclass(frozen=True, slots=True, kw_only=True)
class Bans:
    """What is left out of the distribution, whatever the model says.

    allowed: the only tokens that may come; empty where any may. sequences: the output, of which
    the prompt is no part, has none of them in it. min_tokens: none of `ends` is among the output's
    first so many tokens.
    """

    allowed: tuple[int, ...] = ()
    sequences: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    ends: tuple[int, ...] = ()

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return bool(self.allowed or self.sequences or (self.min_tokens and self.ends))

    def validate(self, vocabulary_size: int) -> None:
        """Raises InvalidInput for tokens that are none, or where nothing might be left to say."""
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
