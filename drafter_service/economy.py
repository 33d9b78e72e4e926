"""Whether one more forward of the draft model brings in enough to be worth its time."""

from __future__ import annotations

from draftloop.tree import DraftBudget

MEMORY = 0.9
PRIOR_GAIN = 0.6


class Economy:
    """What forwards of one session cost and bring in, of late.

    `first_forward_s` is a first guess: seconds of one forward.
    """

    def __init__(self, first_forward_s: float) -> None:
        self._forward_s = first_forward_s
        self._gain = PRIOR_GAIN  # expected accepted tokens of a forward whose start is accepted

    def observe(self, seconds: float, gain: float) -> None:
        """Takes in a forward, waiting included, and the expected tokens that it added."""
        self._forward_s += (1 - MEMORY) * (seconds - self._forward_s)
        self._gain += (1 - MEMORY) * (gain - self._gain)

    def pays(self, reach: float, budget: DraftBudget) -> bool:
        """Whether to run another forward behind a draft that is accepted whole with `reach`."""
        price = budget.tokens_per_second * self._forward_s + budget.least_path_probability
        return reach * self._gain > price
