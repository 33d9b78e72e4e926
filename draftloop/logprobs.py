"""How likely the target model found what it said."""

from __future__ import annotations

from dataclasses import dataclass

# As many as the field's other servers give.
MOST_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the model's own probabilities, before bias, penalties and temperature.

    `top` are the likeliest tokens at the same position, likeliest first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
