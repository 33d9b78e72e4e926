"""Whether to draft at all: rounds with drafts against rounds without, by what both bring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftloop.cost_line import CostLine
from draftloop.tree import Draft
from orchestrator.budget import Controller
from orchestrator.drafter_session import DrafterSession
from orchestrator.gains import ROUNDS_OF_TRY, Gain
from orchestrator.selection import NO_OFFER, Offer, cut

# Of a round's tokens that trying the draft model again may cost, as far as is known.
SHARE_OF_TRIES = 0.05
# How long the first draft is waited for at most: so often what prefilling takes, and a way there
# and back.
PREFILLS, LEAST_WAIT_S = 2, 0.005
# Tokens that a later round of a try may cost beyond what its first one did.
TRY_TOLERANCE = 0.5


class DraftChoice:
    """Drafts where rounds with drafts have brought in more than their time would without.

    `gain` knows what they brought in this request and in those before; what has not paid is tried
    again ever less often. A `fixed` size of drafts is drafted in every round.
    """

    def __init__(self, controller: Controller, gain: Gain) -> None:
        self._controller = controller
        self._gain = gain
        self._observed: int | None = None  # the number of this request's latest draft in `gain`

    def drafts(self) -> bool:
        """Whether to draft in this round; to be asked once a round."""
        return self._controller.fixed or self._gain.shared.patience.takes(self.advantage() > 0)

    def advantage(self, offer: Offer = NO_OFFER) -> float:
        """Tokens that a round with a draft is expected to bring in beyond one without.

        The round without one still verifies what free sources offer.
        """
        controller = self._controller
        return self._gain.worth(controller, offer) - controller.worth(offer)

    def cut(self, draft: Draft) -> Draft:
        """What of a finished draft is worth verifying."""
        return cut(draft, self._controller.select(draft.tree))

    def observe(self, accepted: int, nodes: int, draft_ns: int, offer: Offer = NO_OFFER) -> None:
        """Takes in a round with a draft, which took so long to make."""
        self._observed = self._gain.observe(accepted, nodes, draft_ns, offer)

    def observe_delay(self, nanoseconds: float) -> None:
        """Takes in what the round that was observed last took beyond what was expected."""
        number, self._observed = self._observed, None
        if number is not None:
            self._gain.shared.observe_delay(number, nanoseconds)


@dataclass(slots=True)
class _Try:
    """A try, of rounds that ask though it does not pay: those `left`, the first one's `offer`."""

    left: int
    offer: Offer = NO_OFFER


class ModelChoice(DraftChoice):
    """The same for drafts of the drafter service, whose session is opened where it repays that.

    In a round `asks` comes first. Where that says yes, `looks_back` tells whether `look_back` is to
    be called once the round is over, before `observe`, which follows every draft that was judged.

    `costs` are those of the draft model's forwards; `left` tells how many tokens may come when the
    request holds so many.
    """

    def __init__(
        self,
        controller: Controller,
        gain: Gain,
        *,
        drafter: DrafterSession,
        costs: CostLine,
        left: Callable[[int], int],
    ) -> None:
        super().__init__(controller, gain)
        self.drafter = drafter
        self._costs = costs
        self._left = left
        self._just_opened = False  # by a round that wanted a draft: the first one that can asks too
        self._try = _Try(0)
        self._promised = 0.0  # tokens by which asking in this round seemed better

    def open(self, committed: Sequence[int]) -> None:
        """Has the drafter prefill, unless it would be for nothing by what is known.

        Then the first round that asks for it opens its session, if one ever does.
        """
        self._open_if_due(committed, self.advantage())

    def asks(self, committed: Sequence[int], offer: Offer = NO_OFFER) -> bool:
        """Whether to ask the drafter in this round, in which free sources have an offer.

        A round that only opens the session does without: that is a choice and no failure.
        """
        self._promised = super().advantage(offer)
        advantage = self._promised - self._overrated
        if self.drafter.asked_for:
            due = self.drafter.is_due
            return self._controller.fixed or (due and self._takes(advantage, offer))
        self._just_opened = self._open_if_due(committed, advantage)
        return self._just_opened and not self.drafter.asked_for  # none was there

    def advantage(self, offer: Offer = NO_OFFER) -> float:
        """The same, less the tokens by which hindsight has found asking overrated."""
        return super().advantage(offer) - self._overrated

    @property
    def _overrated(self) -> float:
        """Tokens per round, converted from time; 0 for a fixed size, where time has no price."""
        return 0.0 if self._controller.fixed else self._gain.shared.hindsight.overrated

    def looks_back(self) -> bool:
        """Whether to find out what the round that asks now would have taken without.

        Not of a round that waits for the session to open: that wait is part of the opening's cost.
        """
        controller = self._controller
        if controller.fixed or controller.verify_cost.load.is_shared or not self.drafter.is_ready:
            return False
        tries = self._promised <= self._overrated  # what it is there to find out
        return self._gain.shared.hindsight.looks(tries)

    def look_back(self, saved_ns: float) -> None:
        """Takes in by how much that round was quicker than free sources alone."""
        brought = self._controller.prices.rate * saved_ns
        self._gain.shared.hindsight.observe(self._promised, brought)

    def _takes(self, advantage: float, offer: Offer) -> bool:
        """Whether it pays to ask, or is tried."""
        opened, self._just_opened = self._just_opened, False
        pays = advantage > 0
        if not pays and self._goes_on(advantage):
            return True
        between = self._rounds_between(advantage)
        asks = self._gain.shared.asking.takes(pays, at_least=between) or opened
        if asks:
            self._try = _Try(0 if pays else ROUNDS_OF_TRY - 1, offer)
        return asks

    def _rounds_between(self, advantage: float) -> float:
        """How many rounds, of all requests, lie between two tries at the price of this one.

        What a try finds out all requests know: the more there are, the rarer it is among theirs.
        """
        requests = self._controller.verify_cost.load.sessions
        return -advantage * ROUNDS_OF_TRY / SHARE_OF_TRIES * requests

    def _goes_on(self, advantage: float) -> bool:
        """Whether a try that began goes on in this round.

        One in which free sources promise much can do without the model: that would make it dear.
        """
        tried = self._try
        if not tried.left or advantage < self.advantage(tried.offer) - TRY_TOLERANCE:
            return False
        tried.left -= 1
        return True

    def _open_if_due(self, committed: Sequence[int], advantage: float) -> bool:
        """Opens the drafter's session where that pays or is tried; returns whether it did.

        It pays where the rounds to come bring in more than prefilling takes.
        """
        pays = advantage > 0 and self._repays(committed, advantage)
        # What no drafter can take is counted as a round without one, and is nobody's try.
        openings = self._gain.shared.openings if self.drafter.fits(committed) else None
        opens = self._controller.fixed or (openings.takes(pays) if openings else pays)
        if opens:
            self.drafter.open(committed, self._waits_s(committed, advantage))
        return opens

    def _repays(self, committed: Sequence[int], advantage: float) -> bool:
        """Whether the rounds to come, each with this advantage, bring in what prefilling takes."""
        prefill_ns = self._prefill_ns(committed)
        left = self._left(len(committed))
        price = self._controller.draft_price(prefill_ns, prefill_ns)
        return advantage * left / (1 + self._gain.means.tokens) > price

    def _prefill_ns(self, committed: Sequence[int]) -> float:
        return self._costs.nanoseconds(self.drafter.fresh(committed))

    def _waits_s(self, committed: Sequence[int], advantage: float) -> float | None:
        """How long the first draft is waited for: no longer than it is worth.

        With a small target that is less than opening takes, and rounds go on without until then.
        None: as long as for every other answer.
        """
        controller = self._controller
        if controller.fixed:
            return None
        longest = LEAST_WAIT_S + PREFILLS * self._prefill_ns(committed) / 1e9
        return min(longest, max(0.0, advantage) / controller.prices.rate / 1e9)
