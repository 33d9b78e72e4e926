"""How likely the target model found what it said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

# As many as the field's other servers give.
MOST_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the model's own probabilities.

    Before bias, penalties, bans, grammar and temperature. `top` are the likeliest tokens at the
    same position, likeliest first; a grammar or a ban may forbid some of them.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobs:
    """The same of every token of a prompt behind the first, of which nothing can be said.

    In parallel lists, since prompts are long. `ranks`: 1 is the likeliest token at that place.
    `top_token_ids` and `top_logprobs`: the `count` likeliest of each place, place after place.
    """

    count: int = 0
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    top_token_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)

    def entries(self, prompt: Sequence[int]) -> Iterator[TokenLogprobs]:
        """One for every token of the prompt behind the first."""
        for place, (token, logprob) in enumerate(zip(prompt[1:], self.logprobs, strict=True)):
            top = slice(place * self.count, (place + 1) * self.count)
            pairs = zip(self.top_token_ids[top], self.top_logprobs[top], strict=True)
            yield TokenLogprobs(token, logprob, tuple(pairs))

    def fits(self, prompt_length: int) -> bool:
        """Whether the lists belong to such a prompt."""
        places = prompt_length - 1
        tops = {len(self.top_token_ids), len(self.top_logprobs)}
        return len(self.logprobs) == len(self.ranks) == places and tops == {places * self.count}
