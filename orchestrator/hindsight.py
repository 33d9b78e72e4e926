"""What rounds that asked the draft model would have taken without it.

Before a round its tokens are compared with those that free sources promise for it alone. But where
a text copies on, these are sure of the rest one token later, and have for nothing what the model
was asked for; and what asking takes is more than its forwards. Afterwards the text is known, and
with it how many rounds of free sources it would have been.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftloop.phrase import MAX_CONTEXT
from draftloop.tree import ROOT, DraftBudget, DraftTree
from orchestrator.budget import Controller
from orchestrator.selection import Selection
from phrase_store.session import PhraseSession

# Rounds with the draft model, of all requests, that are looked back at: the first ones, and then
# one of so many. It takes a tenth of a millisecond, which is booked on the round: so on the fewer.
FIRST, EVERY = 8, 4
# So many rounds, at least, share in what is learned; and how many the first guess is worth.
MEMORY, PRIOR_ROUNDS = 0.97, 8
# Tokens: the machine may have stood still.
MOST_SAID = 8.0


@dataclass(slots=True)
class Hindsight:
    """By how much asking is overrated, as all requests have seen.

    Never underrated: the best that could have been done instead is to ask a round later, which is
    no slower than never, and that is what hindsight compares with.
    """

    _asked: int = 0
    _seen: int = 0
    _difference: float = 0.0

    @property
    def overrated(self) -> float:
        """Tokens by which asking promised more than it brought, in the mean."""
        return max(0.0, -self._difference)

    def looks(self, tries: bool = False) -> bool:
        """Whether to look back at the round that asks now; to be asked once for each.

        Always at one that is a try: nothing else can correct an `overrated` that is too high.
        """
        self._asked += 1
        return tries or self._asked <= FIRST or self._asked % EVERY == 0

    def observe(self, promised: float, brought: float) -> None:
        """Takes in a round: tokens gained by asking, as `promised` before and as `brought`."""
        self._seen += 1
        share = max(1 - MEMORY, 1 / (PRIOR_ROUNDS + self._seen))
        said = max(-MOST_SAID, min(MOST_SAID, brought - promised))
        self._difference += share * (said - self._difference)


@dataclass(frozen=True, slots=True)
class Alternative:
    """What free sources had, in `own_ns`, for a round that began to ask the draft model."""

    chosen: Selection
    budget: DraftBudget
    own_ns: int
    began_ns: int

    def nanoseconds(
        self, committed: Sequence[int], new: int, phrases: PhraseSession, controller: Controller
    ) -> float:
        """Time in which free sources alone would have emitted the last `new` committed tokens.

        To be asked before `phrases` takes these tokens in.
        """
        known = len(committed) - new
        before, text = committed[max(0, known - MAX_CONTEXT) : known], committed[known:]
        chosen, done, total = self.chosen, 0, 0.0
        while True:
            hits, left = matched(chosen.tree, text[done:]), new - done
            took = controller.verify_cost.nanoseconds(len(chosen.tree)) + self.own_ns
            if hits >= left:  # and would have gone on: nobody knows how far
                return total + took * left / max(left, 1 + chosen.promised)
            total, done = total + took, done + hits + 1
            if done == new:
                return total
            chosen = controller.select(phrases.peek(before, self.budget, text[:done]))


def matched(tree: DraftTree, text: Sequence[int]) -> int:
    """How many tokens of a text the draft has, from its root on."""
    node, count = ROOT, 0
    for place, token in enumerate(tree.token_ids):
        if count == len(text):
            break
        if tree.parents[place] == node and token == text[count]:
            node, count = place, count + 1
    return count
