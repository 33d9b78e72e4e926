"""How long rounds that asked the draft model would have taken without it.

Before a round, the tokens expected from asking are compared with what free sources promise for
this round alone. That is wrong in two ways. Where a text goes on copying, free sources become sure
of the rest one token later, and then offer for free what the draft model was asked for. And time is
priced at the request's mean pace, which copied passages raise: where there is nothing to copy, the
time that a draft takes is worth less. After the round the text is known, and so is the number of
rounds that free sources alone would have needed for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftloop.tree import ROOT, DraftBudget, DraftTree
from orchestrator.budget import Controller
from orchestrator.outcome import RoundOutcome
from orchestrator.selection import Offer, Selection
from phrase_store.session import PhraseSession

# Rounds with the draft model, of all requests, that are judged in hindsight: the first ones, then
# one in EVERY. Judging takes a tenth of a millisecond, which counts as time of the round.
FIRST_JUDGED, JUDGED_EVERY = 8, 4
# Decay per judged round, and the weight of the first guess (0), in rounds.
MEMORY, PRIOR_ROUNDS = 0.97, 8
# Maximum difference in tokens that one round may report: the machine may have stalled.
MAX_DIFFERENCE = 8.0


@dataclass(slots=True)
class _Differences:
    """Mean number of tokens by which judged rounds brought more than they promised."""

    mean: float = 0.0
    _judged: int = 0

    def observe(self, difference: float) -> None:
        self._judged += 1
        share = max(1 - MEMORY, 1 / (PRIOR_ROUNDS + self._judged))
        difference = max(-MAX_DIFFERENCE, min(MAX_DIFFERENCE, difference))
        self.mean += share * (difference - self.mean)


@dataclass(slots=True)
class Hindsight:
    """By how much promises of the draft model are wrong, learned from all similar requests.

    Rounds in which free sources offer something are corrected downwards only: hindsight compares
    with not asking at all, while the best alternative is to take the offer and to ask one round
    later. Rounds without an offer are corrected both ways.
    """

    _asked: int = 0
    _offered: _Differences = field(default_factory=_Differences)
    _unoffered: _Differences = field(default_factory=_Differences)

    def correction(self, offer: Offer) -> float:
        """Tokens to add to what asking promises in a round in which free sources offer `offer`."""
        return min(0.0, self._offered.mean) if offer.nodes else self._unoffered.mean

    def should_judge(self, is_try: bool = False) -> bool:
        """Whether to judge the round that asks now in hindsight; to be called once per such round.

        Always True for a try: nothing else can correct a `correction` that is too low.
        """
        self._asked += 1
        return is_try or self._asked <= FIRST_JUDGED or self._asked % JUDGED_EVERY == 0

    def observe(self, promised: float, brought: float, offer: Offer) -> None:
        """Records a judged round: tokens gained by asking, as `promised` and as `brought`."""
        differences = self._offered if offer.nodes else self._unoffered
        differences.observe(brought - promised)


@dataclass(frozen=True, slots=True)
class Alternative:
    """What free sources had for a round that asked the draft model instead.

    `chosen`: the part of their draft that was worth verifying. `own_ns`: how long they took to
    draft. `began_ns`: when the round's drafting began.
    """

    chosen: Selection
    budget: DraftBudget
    own_ns: int
    began_ns: int

    def nanoseconds(
        self, outcome: RoundOutcome, phrases: PhraseSession, controller: Controller
    ) -> float:
        """Time that free sources alone would have needed for the tokens that the round committed.

        To be called before `phrases` learns these tokens.
        """
        context, text = outcome.context, outcome.new_token_ids
        chosen, done, total = self.chosen, 0, 0.0
        while True:
            matching, remaining = count_matching(chosen.tree, text[done:]), len(text) - done
            took_ns = controller.verify_cost.nanoseconds(len(chosen.tree)) + self.own_ns
            if matching >= remaining:  # its draft may reach further: the text beyond is not known
                return total + took_ns * remaining / max(remaining, 1 + chosen.promised)
            total, done = total + took_ns, done + matching + 1
            if done == len(text):
                return total
            chosen = controller.select(phrases.peek(context, self.budget, text[:done]))


def count_matching(tree: DraftTree, text: Sequence[int]) -> int:
    """How many tokens of a text the draft predicts correctly, from its root on."""
    node, count = ROOT, 0
    for index, token in enumerate(tree.token_ids):
        if count == len(text):
            break
        if tree.parents[index] == node and token == text[count]:
            node, count = index, count + 1
    return count
