"""What recent rounds with drafts brought, in one request and in all similar ones."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from draftloop.calibrations import step_of
from draftloop.pace import Pace
from draftloop.patience import Patience
from orchestrator.budget import SHARED_PACE_MEMORY, Controller
from orchestrator.costs import VerifyCost
from orchestrator.hindsight import Hindsight
from orchestrator.selection import NO_OFFER, Offer

# Decay per round: of a request's averages, and of those of all similar requests, which a request
# starts from. With a shorter memory, a draft model would be asked because it was lucky a few times.
MEMORY, SHARED_MEMORY = 0.95, 0.98
# Weight of the first guess, in rounds: low enough that the result of a first try shows.
PRIOR_ROUNDS = 4
# Free sources partly offer what the draft model would have found as well. Of offered tokens and
# nodes beyond the usual number, this share is added to what a draft is expected to bring.
SHARE_OF_OFFER = 0.6
# Drafts, of all requests, whose time is remembered. The median is used: one stalled draft then
# does not count, and a first guess that knows only the time of forwards is soon corrected.
LATEST_DRAFTS = 16
# First guesses of a round with a draft: accepted tokens, nodes, draft forwards.
USUAL_TOKENS, USUAL_NODES, USUAL_FORWARDS = 1.2, 6.0, 3.0
# Fractions of a usual draft's nodes. The best nodes come first: accepted tokens grow like the
# square root of the nodes.
SMALLER_DRAFTS = (1.0, 0.5, 0.25)
# Maximum rounds, of all requests, until drafts that do not pay are tried again.
MAX_ROUNDS_WITHOUT = 64
# The same for requests without a drafter session, where a try has to prefill a prompt first; and
# the minimum. Within these, what a try costs decides (`ModelChoice`).
MIN_ROUNDS_UNOPENED, MAX_ROUNDS_UNOPENED = 8, 1024
# Maximum number of pairs of method and temperature for which results are kept.
MAX_METHODS = 128
# Rounds of one try of a draft model: after a pause, the service's first answer is the slowest.
TRY_ROUNDS = 4


@dataclass(slots=True)
class Means:
    """Averages over rounds with drafts: accepted tokens, nodes, and what free sources offered.

    For strategies with a draft model, only rounds that used it count. `added_ns`, `offered_ns`:
    how much longer verifying these drafts, and those offers, takes than a round without a draft,
    while no other session shares the verifier. Costs are staircases, so their mean is not the cost
    of the mean size.
    """

    memory: float
    tokens: float = USUAL_TOKENS
    nodes: float = USUAL_NODES
    offered_tokens: float = 0.0
    offered_nodes: float = 0.0
    added_ns: float = 0.0
    offered_ns: float = 0.0
    rounds: int = 0

    def observe(
        self, accepted: int, nodes: int, offer: Offer, added: tuple[float, float] | None
    ) -> None:
        """Counts a round with a draft; `added`: see `added_ns` and `offered_ns`, None if shared."""
        self.rounds += 1
        share = max(1 - self.memory, 1 / (PRIOR_ROUNDS + self.rounds))
        self.tokens += share * (accepted - self.tokens)
        self.nodes += share * (nodes - self.nodes)
        self.offered_tokens += share * (offer.tokens - self.offered_tokens)
        self.offered_nodes += share * (offer.nodes - self.offered_nodes)
        if added is not None:
            if not self.added_ns:
                self.added_ns, self.offered_ns = added
            added_ns, offered_ns = added
            self.added_ns += share * (added_ns - self.added_ns)
            self.offered_ns += share * (offered_ns - self.offered_ns)


@dataclass(slots=True)
class SharedGain:
    """What similar requests learn together: what drafts bring, how long they take, when to try."""

    # Nanoseconds of the latest drafts, including how much they delayed their round; never empty.
    draft_times: deque[float]
    _drafts: int = field(init=False, default=0)  # observed so far: the number of the latest
    # Median time of a draft; and its time without waiting for other sessions, for which the
    # quickest of the latest drafts is taken.
    draft_ns: float = field(init=False)
    work_ns: float = field(init=False)
    means: Means = field(default_factory=lambda: Means(SHARED_MEMORY))
    hindsight: Hindsight = field(default_factory=Hindsight)
    # Shared by all requests: if each of them made its own tries, short ones would lose much.
    patience: Patience = field(default_factory=lambda: Patience(MAX_ROUNDS_WITHOUT))
    asking: Patience = field(default_factory=lambda: Patience(TRY_ROUNDS * MAX_ROUNDS_WITHOUT))
    openings: Patience = field(
        default_factory=lambda: Patience(MAX_ROUNDS_UNOPENED, MIN_ROUNDS_UNOPENED)
    )

    def __post_init__(self) -> None:
        self._summarize()

    def observe_draft(self, nanoseconds: float) -> int:
        """Records how long a draft was waited for; returns its number, for `observe_delay`."""
        self.draft_times.append(nanoseconds)
        self._drafts += 1
        self._summarize()
        return self._drafts

    def observe_delay(self, number: int, nanoseconds: float) -> None:
        """Adds to draft `number` how much longer than expected its round took.

        A draft model fills the target's processor caches with its own data. With a small target
        this costs a tenth of the round, which would otherwise be attributed to all drafts. Drafts
        of other requests may have been observed since; a draft that is no longer remembered is
        ignored.
        """
        later = self._drafts - number
        if later < len(self.draft_times):
            self.draft_times[-1 - later] += nanoseconds
            self._summarize()

    def _summarize(self) -> None:
        self.draft_ns = statistics.median_low(self.draft_times)
        self.work_ns = max(0.0, min(self.draft_times))


class Gain:
    """A request's own averages, which start as those of similar requests, and the shared state."""

    def __init__(self, shared: SharedGain) -> None:
        self.shared = shared
        self.means = dataclasses.replace(shared.means, memory=MEMORY)

    def worth(self, controller: Controller, offer: Offer = NO_OFFER) -> float:
        """Expected tokens of a round with a draft, minus those that its time brings in anyway.

        `offer`: what free sources offer in this round. If drafts are cut to what is worth
        verifying, the round is worth no less with one than with the offer alone, apart from the
        time to draft it.
        """
        verified = 1 + self._accepted_worth(controller, offer)
        if not (controller.fixed or controller.verify_uncut):
            verified = max(verified, controller.worth(offer))
        return verified - controller.draft_price(self.shared.draft_ns, self.shared.work_ns)

    def _accepted_worth(self, controller: Controller, offer: Offer) -> float:
        """Expected accepted tokens, minus those that verifying the draft's time brings in anyway.

        If other sessions share the verifier, nodes cost more than in the remembered rounds, so
        smaller drafts are considered as well.
        """
        means, cost, rate = self.means, controller.verify_cost, controller.prices.shared_rate
        extra_tokens = offer.tokens - means.offered_tokens
        expected = max(0.0, means.tokens + SHARE_OF_OFFER * extra_tokens)
        if means.added_ns and not cost.load.is_shared:
            extra_ns = cost.added_nanoseconds(offer.nodes) - means.offered_ns
            verify_ns = cost.nanoseconds(0) + means.added_ns + SHARE_OF_OFFER * extra_ns
            return expected - rate * max(cost.nanoseconds(1), verify_ns)
        extra_nodes = offer.nodes - means.offered_nodes
        nodes = max(1.0, means.nodes + SHARE_OF_OFFER * extra_nodes)
        return max(
            math.sqrt(share) * expected - rate * cost.nanoseconds(share * nodes)
            for share in (SMALLER_DRAFTS if cost.load.is_shared else (1.0,))
        )

    def observe(
        self, accepted: int, nodes: int, draft_ns: int, cost: VerifyCost, offer: Offer = NO_OFFER
    ) -> int:
        """Counts a round with a draft, for this request and for all similar ones.

        `cost`: of verifying. Returns the draft's number for `SharedGain.observe_delay`.
        """
        added = None
        if not cost.load.is_shared:
            added = cost.added_nanoseconds(nodes), cost.added_nanoseconds(offer.nodes)
        for means in (self.means, self.shared.means):
            means.observe(accepted, nodes, offer, added)
        return self.shared.observe_draft(draft_ns)


@dataclass(slots=True)
class _SharedState:
    """What requests of one method and temperature share."""

    pace: Pace = field(default_factory=lambda: Pace(memory=SHARED_PACE_MEMORY))
    gain: SharedGain | None = None


class Gains:
    """What rounds with drafts brought in all requests, by method and temperature.

    `method`: see `Speculation.method`. Clients can make up many of them, so only the most recently
    used ones are kept.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Hashable, int], _SharedState] = OrderedDict()

    def pace_of(self, method: Hashable, temperature: float) -> Pace:
        """The pace of all requests of this method and temperature; they share one object."""
        return self._shared_state(method, temperature).pace

    def of(self, method: Hashable, temperature: float, draft_token_ns: float) -> Gain:
        """A new request's gain, which starts from what similar requests found.

        `draft_token_ns`: time of a draft forward, from which the very first guess is made.
        """
        shared = self._shared_state(method, temperature)
        if shared.gain is None:
            guess = USUAL_FORWARDS * draft_token_ns
            shared.gain = SharedGain(deque([guess], LATEST_DRAFTS))
        return Gain(shared.gain)

    def _shared_state(self, method: Hashable, temperature: float) -> _SharedState:
        key = method, step_of(temperature)
        shared = self._known.setdefault(key, _SharedState())
        self._known.move_to_end(key)
        if len(self._known) > MAX_METHODS:
            self._known.popitem(last=False)
        return shared
