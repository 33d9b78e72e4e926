"""What rounds with drafts brought of late, in a request and in all before it."""

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
from orchestrator.budget import EVERYBODYS_MEMORY, Controller
from orchestrator.hindsight import Hindsight
from orchestrator.selection import NO_OFFER, Offer

# Of a request, and of all requests of about its temperature: what a request starts from. Few rounds
# say little: with a shorter memory a draft model is asked where it has just been lucky.
MEMORY, LONG_MEMORY = 0.95, 0.98
# How many rounds a first guess is worth: what a first try brings must show.
PRIOR_ROUNDS = 4
# What free sources offer is partly what the draft model would have found as well: of tokens and
# nodes beyond the usual ones so much comes on top.
SHARE_OF_OFFER = 0.6
# Drafts, of all requests, whose time is remembered. Their median: one in which something stood
# still says nothing, and a first guess that knows only the forwards is soon corrected.
LATEST_DRAFTS = 16
# First guesses of a round with a draft: accepted tokens, nodes, draft forwards.
USUAL_TOKENS, USUAL_NODES, USUAL_FORWARDS = 1.2, 6.0, 3.0
# Parts of a usual draft. Accepted tokens grow like the root of the nodes: the best come first.
SMALLER_DRAFTS = (1.0, 0.5, 0.25)
# Rounds, of all requests, after which drafts that do not pay are tried again at the latest.
LONGEST_WITHOUT = 64
# The same where the request has no session yet, so that a prompt is prefilled for the try.
SHORTEST_UNOPENED, LONGEST_UNOPENED = 64, 1024
# Methods, each at one temperature, of which is known what they brought.
MOST_METHODS = 128
# Of a try of a draft model: its service's first answer after a while is the slowest.
ROUNDS_OF_TRY = 4


@dataclass(slots=True)
class Means:
    """Of rounds with drafts: accepted tokens, nodes, and what free sources offered.

    Where free sources offer something of their own, only rounds with drafts of the draft model.
    """

    memory: float
    tokens: float = USUAL_TOKENS
    nodes: float = USUAL_NODES
    offered_tokens: float = 0.0
    offered_nodes: float = 0.0
    rounds: int = 0

    def observe(self, accepted: int, nodes: int, offer: Offer) -> None:
        """Takes in a round with a draft."""
        self.rounds += 1
        share = max(1 - self.memory, 1 / (PRIOR_ROUNDS + self.rounds))
        self.tokens += share * (accepted - self.tokens)
        self.nodes += share * (nodes - self.nodes)
        self.offered_tokens += share * (offer.tokens - self.offered_tokens)
        self.offered_nodes += share * (offer.nodes - self.offered_nodes)


@dataclass(slots=True)
class SharedGain:
    """What all requests learn together: what drafts bring, what they take, when to try again."""

    # In nanoseconds, with what a round took longer around them; never empty.
    draft_times: deque[float]
    _drafts: int = field(init=False, default=0)  # that were observed: the number of the latest
    # What a draft takes, and what of that no other session has to do with: the quickest of late
    # waited for nobody.
    draft_ns: float = field(init=False)
    work_ns: float = field(init=False)
    means: Means = field(default_factory=lambda: Means(LONG_MEMORY))
    hindsight: Hindsight = field(default_factory=Hindsight)
    # Each request trying by itself would cost short ones much.
    patience: Patience = field(default_factory=lambda: Patience(LONGEST_WITHOUT))
    asking: Patience = field(default_factory=lambda: Patience(ROUNDS_OF_TRY * LONGEST_WITHOUT))
    openings: Patience = field(
        default_factory=lambda: Patience(LONGEST_UNOPENED, SHORTEST_UNOPENED)
    )

    def __post_init__(self) -> None:
        self._summarize()

    def observe_draft(self, nanoseconds: float) -> int:
        """Takes in how long a draft was waited for; its number, for `observe_delay`."""
        self.draft_times.append(nanoseconds)
        self._drafts += 1
        self._summarize()
        return self._drafts

    def observe_delay(self, number: int, nanoseconds: float) -> None:
        """Takes in how much longer the round of a draft took than it should.

        A draft model leaves the target's caches full of its own: on a small target that is a tenth
        of the round, which would otherwise be booked on all drafts. Drafts of other requests may
        have been observed since; of one that is not remembered any more nothing is.
        """
        later = self._drafts - number
        if later < len(self.draft_times):
            self.draft_times[-1 - later] += nanoseconds
            self._summarize()

    def _summarize(self) -> None:
        self.draft_ns = statistics.median_low(self.draft_times)
        self.work_ns = max(0.0, min(self.draft_times))


class Gain:
    """A request's own means, which start where everybody's are, beside what all share."""

    def __init__(self, shared: SharedGain) -> None:
        self.shared = shared
        self.means = dataclasses.replace(shared.means, memory=MEMORY)

    def worth(self, controller: Controller, offer: Offer = NO_OFFER) -> float:
        """Expected tokens of a round with a draft, beyond those that its time brings in anyway.

        `offer`: what free sources have for this round. Where other sessions share the verifier,
        nodes cost more than in the rounds that are remembered: smaller drafts are thought of, too.
        """
        usual, shared = self.means, self.shared
        more, larger = offer.tokens - usual.offered_tokens, offer.nodes - usual.offered_nodes
        expected = max(0.0, usual.tokens + SHARE_OF_OFFER * more)
        nodes = max(1.0, usual.nodes + SHARE_OF_OFFER * larger)
        cost, rate = controller.verify_cost, controller.prices.shared_rate
        most = max(
            math.sqrt(share) * expected - rate * cost.nanoseconds(share * nodes)
            for share in (SMALLER_DRAFTS if cost.load.is_shared else (1.0,))
        )
        return 1 + most - controller.draft_price(shared.draft_ns, shared.work_ns)

    def observe(self, accepted: int, nodes: int, draft_ns: int, offer: Offer = NO_OFFER) -> int:
        """Takes in a round with a draft, here and for everybody; the draft's number there."""
        self.means.observe(accepted, nodes, offer)
        self.shared.means.observe(accepted, nodes, offer)
        return self.shared.observe_draft(draft_ns)


@dataclass(slots=True)
class _Everybodys:
    """What requests that are drafted alike have in common."""

    pace: Pace = field(default_factory=lambda: Pace(memory=EVERYBODYS_MEMORY))
    gain: SharedGain | None = None


class Gains:
    """What rounds with drafts brought in all requests, by method and temperature.

    `method`: see `Speculation.method`. Of those that clients come up with the latest are kept.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Hashable, int], _Everybodys] = OrderedDict()

    def pace_of(self, method: Hashable, temperature: float) -> Pace:
        """How fast all requests like it are: one for all of them."""
        return self._everybodys(method, temperature).pace

    def of(self, method: Hashable, temperature: float, draft_token_ns: float) -> Gain:
        """A request's own, which starts where the others are; a draft forward's time, at first."""
        everybodys = self._everybodys(method, temperature)
        if everybodys.gain is None:
            guess = USUAL_FORWARDS * draft_token_ns
            everybodys.gain = SharedGain(deque([guess], LATEST_DRAFTS))
        return Gain(everybodys.gain)

    def _everybodys(self, method: Hashable, temperature: float) -> _Everybodys:
        key = method, step_of(temperature)
        known = self._known.setdefault(key, _Everybodys())
        self._known.move_to_end(key)
        if len(self._known) > MOST_METHODS:
            self._known.popitem(last=False)
        return known
