"""How much time a grammar may take of everybody who shares the model while a text follows it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from draftloop.grammar import Grammar
from draftloop.grammars.text import refusal

# A token takes a fraction of a millisecond as a rule, some milliseconds where it is much. Where a
# grammar reads a text in many ways one takes a third of a second behind sixty others, and every
# further one takes longer; no trial at the beginning of a text can tell.
AT_ONCE_S = 2.0
EACH_S = 0.01
TOO_SLOW = f"following it takes more than {1000 * EACH_S:g} ms a token"


class GrammarTime:
    """Of one output: so much at once, and for every token that is looked at a little more.

    Of the thread that follows, so that a busy machine refuses nothing that an idle one takes.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._left_s = AT_ONCE_S

    @contextlib.contextmanager
    def spent_on(self, grammar: Grammar) -> Iterator[None]:
        """Counts what a token takes. Raises InvalidInput where that has become too much."""
        begun = self._clock()
        yield
        self._left_s = min(AT_ONCE_S, self._left_s + EACH_S) - (self._clock() - begun)
        if self._left_s < 0:
            raise refusal(grammar, TOO_SLOW)
