"""Log-probabilities that the target model gave to tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

# The limit that other servers have.
MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the model's own probabilities.

    They are taken before bias, penalties, bans, grammar and temperature. `top` holds the most
    likely tokens at the same position, the most likely first; a grammar or a ban may forbid some of
    them.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobs:
    """Log-probabilities of every token of a prompt except the first, which has none.

    They are held in parallel lists, since prompts are long. `ranks`: 1 is the most likely token at
    that position. `top_token_ids` and `top_logprobs`: the `count` most likely tokens of each
    position, one position after another.
    """

    count: int = 0
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    top_token_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)

    def entries(self, prompt: Sequence[int]) -> Iterator[TokenLogprobs]:
        """One entry for every token of the prompt except the first."""
        for place, (token, logprob) in enumerate(zip(prompt[1:], self.logprobs, strict=True)):
            top = slice(place * self.count, (place + 1) * self.count)
            pairs = zip(self.top_token_ids[top], self.top_logprobs[top], strict=True)
            yield TokenLogprobs(token, logprob, tuple(pairs))

    def fits(self, prompt_length: int) -> bool:
        """Whether the lists have the lengths that belong to a prompt of this length."""
        places = prompt_length - 1
        tops = {len(self.top_token_ids), len(self.top_logprobs)}
        return len(self.logprobs) == len(self.ranks) == places and tops == {places * self.count}
