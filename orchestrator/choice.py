"""Whether to draft at all: compares what rounds with and without a draft bring in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftloop.cost_line import CostLine
from draftloop.tree import Draft
from orchestrator.budget import Controller
from orchestrator.drafter_session import DrafterSession
from orchestrator.gains import TRY_ROUNDS, Gain
from orchestrator.selection import NO_OFFER, Offer, cut

# Expected tokens per round that trying the draft model again may cost, averaged over all rounds.
TRY_COST_PER_ROUND = 0.05
# Maximum wait for the first draft: this many times the prefill's time, plus a network round trip.
MAX_WAIT_PREFILLS, MIN_WAIT_S = 2, 0.005
# Tokens by which a later round of a try may cost more than its first round.
TRY_TOLERANCE = 0.5


class DraftChoice:
    """Drafts if rounds with drafts have brought in more tokens than the same time without drafts.

    `gain` records what drafts brought, in this request and in earlier ones. If drafting does not
    pay, it is tried again at growing intervals. With a fixed draft size, every round drafts.
    """

    def __init__(self, controller: Controller, gain: Gain) -> None:
        self._controller = controller
        self._gain = gain
        self._observed: int | None = None  # number of this request's latest draft in `gain.shared`

    def should_draft(self) -> bool:
        """Whether to draft in this round; to be called once per round."""
        return self._controller.fixed or self._gain.shared.patience.should_try(self.advantage() > 0)

    def advantage(self, offer: Offer = NO_OFFER) -> float:
        """Expected tokens of a round with a draft, minus those of a round without.

        The round without still verifies what free sources offer. Both are net of their time.
        """
        controller = self._controller
        return self._gain.worth(controller, offer) - controller.worth(offer)

    def cut(self, draft: Draft) -> Draft:
        """Cuts a finished draft to the part that is worth verifying."""
        return cut(draft, self._controller.select(draft.tree))

    def observe(self, accepted: int, nodes: int, draft_ns: int, offer: Offer = NO_OFFER) -> None:
        """Records a round whose draft was judged; it was waited for during `draft_ns`."""
        cost = self._controller.verify_cost
        self._observed = self._gain.observe(accepted, nodes, draft_ns, cost, offer)

    def observe_delay(self, nanoseconds: float) -> None:
        """Records how much longer than expected the last observed round took."""
        number, self._observed = self._observed, None
        if number is not None:
            self._gain.shared.observe_delay(number, nanoseconds)


@dataclass(slots=True)
class _Try:
    """A try: consecutive rounds that ask the drafter although that does not seem to pay.

    `left`: its remaining rounds. `offer`: what free sources offered in its first round.
    """

    left: int
    offer: Offer = NO_OFFER


class ModelChoice(DraftChoice):
    """A `DraftChoice` for the drafter service. Opens its session if that is expected to pay.

    In every round, call `should_ask` first. If it returns True, `should_look_back` says whether to
    call `record_hindsight` once the round is over, before `observe`. `observe` follows every judged
    draft.

    `costs`: time of the draft model's forwards. `tokens_left`: returns how many tokens may
    still come, given the number of committed tokens.
    """

    def __init__(
        self,
        controller: Controller,
        gain: Gain,
        *,
        drafter: DrafterSession,
        costs: CostLine,
        tokens_left: Callable[[int], int],
    ) -> None:
        super().__init__(controller, gain)
        self.drafter = drafter
        self._costs = costs
        self._tokens_left = tokens_left
        # A round that wanted a draft opened the session: the first round that can ask then does.
        self._just_opened = False
        self._try = _Try(0)
        # In this round: what free sources offer, and the advantage of asking in tokens, before and
        # after it is corrected by hindsight.
        self._offer = NO_OFFER
        self._expected_advantage = self._advantage = 0.0

    def open(self, committed: Sequence[int]) -> None:
        """Opens the drafter's session, which prefills, if that is expected to pay.

        If not, the first round in which it is expected to pay opens it.
        """
        self._open_if_due(committed, self.advantage())

    def should_ask(self, committed: Sequence[int], offer: Offer = NO_OFFER) -> bool:
        """Whether to ask the drafter in this round, in which free sources offer `offer`.

        A round that only opens the session does not ask; this does not count as a fallback.
        """
        self._offer, self._expected_advantage = offer, super().advantage(offer)
        self._advantage = self._expected_advantage + self._correction(offer)
        if not self.drafter.is_requested:
            self._just_opened = self._open_if_due(committed, self._advantage)
            # Still not requested: no replica takes the session. Asking then fails at once, which
            # counts as a fallback.
            return self._just_opened and not self.drafter.is_requested
        if self._controller.fixed:
            return True
        return self.drafter.is_due and self._decide_to_ask(self._advantage, offer)

    def advantage(self, offer: Offer = NO_OFFER) -> float:
        """The advantage as in the base class, corrected by hindsight."""
        return super().advantage(offer) + self._correction(offer)

    def _correction(self, offer: Offer) -> float:
        """The correction in tokens; 0 with a fixed draft size, where time has no price."""
        return 0.0 if self._controller.fixed else self._gain.shared.hindsight.correction(offer)

    def should_look_back(self) -> bool:
        """Whether to find out how long this round would have taken without the draft model.

        Not for a round that waits for the session to open: that wait is part of the cost of
        opening.
        """
        controller = self._controller
        if controller.fixed or controller.verify_cost.load.is_shared or not self.drafter.is_ready:
            return False
        is_try = self._advantage <= 0  # a try exists to find this out
        return self._gain.shared.hindsight.should_judge(is_try)

    def record_hindsight(self, saved_ns: float) -> None:
        """Records by how much that round was quicker than free sources alone."""
        gained_tokens = self._controller.prices.rate * saved_ns
        self._gain.shared.hindsight.observe(self._expected_advantage, gained_tokens, self._offer)

    def _decide_to_ask(self, advantage: float, offer: Offer) -> bool:
        """Whether to ask: because it pays, or as a try."""
        just_opened, self._just_opened = self._just_opened, False
        pays = advantage > 0
        if not pays and self._continues_try(advantage):
            return True
        min_rounds = self._min_rounds_between_tries(-advantage * TRY_ROUNDS)
        is_asking = self._gain.shared.asking.should_try(pays, at_least=min_rounds) or just_opened
        if is_asking:
            self._try = _Try(0 if pays else TRY_ROUNDS - 1, offer)
        return is_asking

    def _min_rounds_between_tries(self, cost: float) -> float:
        """Minimum number of rounds, over all requests, between tries that cost so many tokens.

        All requests learn from one try, so the more requests run, the more of their rounds lie
        between two tries.
        """
        return cost / TRY_COST_PER_ROUND * self._controller.verify_cost.load.sessions

    def _continues_try(self, advantage: float) -> bool:
        """Whether a running try includes this round.

        Not if free sources promise much more than in the try's first round: asking would then be
        too expensive.
        """
        current = self._try
        if not current.left or advantage < self.advantage(current.offer) - TRY_TOLERANCE:
            return False
        current.left -= 1
        return True

    def _open_if_due(self, committed: Sequence[int], advantage: float) -> bool:
        """Opens the drafter's session if that pays, or as a try; returns whether it decided to.

        It pays if the rounds to come bring in more than the prefill costs. A try costs the prefill
        and what its rounds lose.
        """
        price = self._prefill_price(committed)
        pays = advantage * self._rounds_left(committed) > price
        # A text that does not fit into a drafter must not use up a try.
        patience = self._gain.shared.openings if self.drafter.can_serve(committed) else None
        min_rounds = self._min_rounds_between_tries(price + TRY_ROUNDS * max(0.0, -advantage))
        decided = self._controller.fixed or (
            patience.should_try(pays, at_least=min_rounds) if patience else pays
        )
        if decided:
            self.drafter.open(committed, self._max_wait_s(committed, advantage))
        return decided

    def _rounds_left(self, committed: Sequence[int]) -> float:
        return self._tokens_left(len(committed)) / (1 + self._gain.means.tokens)

    def _prefill_price(self, committed: Sequence[int]) -> float:
        """Tokens that the prefill of the draft model must bring in to pay for its time."""
        prefill_ns = self._prefill_ns(committed)
        return self._controller.draft_price(prefill_ns, prefill_ns)

    def _prefill_ns(self, committed: Sequence[int]) -> float:
        return self._costs.nanoseconds(self.drafter.tokens_to_prefill(committed))

    def _max_wait_s(self, committed: Sequence[int], advantage: float) -> float | None:
        """How many seconds to wait for the first draft: no longer than it is worth.

        With a small target that is less than opening takes; rounds then go on without the drafter.
        None: the usual timeout of an answer.
        """
        controller = self._controller
        if controller.fixed:
            return None
        max_wait_s = MIN_WAIT_S + MAX_WAIT_PREFILLS * self._prefill_ns(committed) / 1e9
        return min(max_wait_s, max(0.0, advantage) / controller.prices.rate / 1e9)
