"""Decides whether one more forward of the draft model gains enough to be worth its time."""

from __future__ import annotations

import numpy as np

from draftloop.runtime.compiling import compiled
from draftloop.runtime.records import Floats
from draftloop.tree import DraftBudget

MEMORY = 0.9
PRIOR_GAIN = 0.6
# Cap on the time that one forward counts for: MAX_SURPRISE times the mean, or times MIN_S if
# that is more. Otherwise one that waited for a long prompt would stop all further ones, for good.
MAX_SURPRISE, MIN_S = 4.0, 1e-3
# With every forward that does not pay, the mean time moves by this share back to the first guess,
# so that further forwards are tried again.
FADING = 0.005
# Places in `Economy.state`.
SECONDS, GAIN, FIRST_SECONDS = range(3)


@compiled
def observe(state: Floats, seconds: float, gain: float, first: bool) -> None:
    """`Economy.observe`, compiled."""
    if not first:
        most = MAX_SURPRISE * max(state[SECONDS], MIN_S)
        state[SECONDS] += (1 - MEMORY) * (min(seconds, most) - state[SECONDS])
    state[GAIN] += (1 - MEMORY) * (gain - state[GAIN])


@compiled
def pays(state: Floats, reach: float, tokens_per_second: float, least: float) -> bool:
    """`Economy.pays`, compiled."""
    is_worthwhile = reach * state[GAIN] > tokens_per_second * state[SECONDS] + least
    if not is_worthwhile:
        state[SECONDS] += FADING * (state[FIRST_SECONDS] - state[SECONDS])
    return bool(is_worthwhile)


class Economy:
    """Running means of what further forwards of a session's drafts cost and gain.

    `first_forward_s`: first guess of the seconds of one forward. `state`: mean seconds of a
    forward; mean gain, the expected accepted tokens given that its start is accepted; that guess.
    """

    def __init__(self, first_forward_s: float) -> None:
        self.state = np.array((first_forward_s, PRIOR_GAIN, first_forward_s))

    def observe(self, seconds: float, gain: float, *, first: bool = False) -> None:
        """Records a forward's seconds, waiting included, and the expected tokens that it added.

        The time of a draft's `first` forward is ignored, as it says nothing about further ones: if
        the target runs on the same machine, its weights fill the processor's caches by then.
        """
        observe(self.state, seconds, gain, first)

    def pays(self, reach: float, budget: DraftBudget) -> bool:
        """Whether to run another forward after a draft that is fully accepted with `reach`.

        To be called once per decision: every no moves the mean seconds towards the first guess.
        """
        rate, least = budget.tokens_per_second, budget.least_path_probability
        return pays(self.state, reach, rate, least)
