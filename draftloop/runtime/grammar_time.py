"""Limits the time that a grammar may take, as all sessions of the model wait for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from draftloop.grammar import Grammar
from draftloop.grammars.text import refusal

# A token usually takes a fraction of a millisecond, at worst some milliseconds. With a highly
# ambiguous grammar, a token takes a third of a second after sixty others, and each further one
# takes longer. A trial at the beginning of a text cannot detect that.
AT_ONCE_S = 2.0
EACH_S = 0.01
TOO_SLOW = f"following it takes more than {1000 * EACH_S:g} ms a token"


class GrammarTime:
    """Time budget of one output: AT_ONCE_S, replenished by EACH_S for every token looked at.

    Measured as the thread's CPU time, so that a busy machine refuses no more than an idle one.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._left_s = AT_ONCE_S

    @contextlib.contextmanager
    def spent_on(self, grammar: Grammar) -> Iterator[None]:
        """Charges the time inside it. Raises InvalidInput if the budget is exceeded."""
        begun = self._clock()
        yield
        self._left_s = min(AT_ONCE_S, self._left_s + EACH_S) - (self._clock() - begun)
        if self._left_s < 0:
            raise refusal(grammar, TOO_SLOW)
