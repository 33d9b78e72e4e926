"""What rounds with the draft model brought of late, for the choice that `fused` makes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from draftloop.calibrations import step_of
from draftloop.patience import Patience
from orchestrator.budget import Controller

# Of a request, and of all requests of about its temperature: what a request starts from.
MEMORY, LONG_MEMORY = 0.9, 0.98
# What free sources promise is partly what the draft model would have found as well.
SHARE_OF_OFFER = 0.6
# First guesses of a round with a draft model: accepted tokens, nodes, draft forwards.
USUAL_TOKENS, USUAL_NODES, USUAL_FORWARDS = 1.2, 6.0, 3.0
# Rounds, of all requests, after which a draft model that does not pay is tried again at the latest.
LONGEST_WITHOUT = 64
# The same where the request has no session yet, so that a prompt is prefilled for the try.
SHORTEST_UNOPENED, LONGEST_UNOPENED = 64, 1024


@dataclass(slots=True)
class ModelGain:
    """Rounds with the draft model: means of accepted tokens, of the offer, of nodes and time.

    `prefill_token_ns`: what it takes for every token that a request holds when its session opens.
    """

    draft_ns: float
    prefill_token_ns: float = 0.0
    tokens: float = USUAL_TOKENS
    offered: float = 0.0
    nodes: float = USUAL_NODES
    memory: float = MEMORY
    everybodys: ModelGain | None = None  # learns too
    # One for all requests: each trying by itself would cost short ones much.
    patience: Patience = field(default_factory=lambda: Patience(LONGEST_WITHOUT))
    openings: Patience = field(
        default_factory=lambda: Patience(LONGEST_UNOPENED, SHORTEST_UNOPENED)
    )

    def worth(self, offered: float, controller: Controller) -> float:
        """Expected tokens of a round, beyond those that its time brings in anyway.

        `offered`: accepted tokens that the free sources promise for this round.
        """
        expected = self.tokens + SHARE_OF_OFFER * (offered - self.offered)
        cost = controller.verify_cost.nanoseconds(self.nodes) + self.draft_ns
        return 1 + expected - controller.rate * cost

    def pays_to_open(self, advantage: float, held: int, left: int, rate: float) -> bool:
        """Whether the rounds of the `left` tokens bring in more than prefilling `held` ones takes.

        `advantage`: tokens that a round with the draft model brings in beyond one without; `rate`
        in tokens per nanosecond.
        """
        rounds = left / (1 + self.tokens)
        return advantage * rounds > rate * held * self.prefill_token_ns

    def observe(self, offered: float, accepted: int, nodes: int, draft_ns: int) -> None:
        """Takes in a round with the draft model."""
        share = 1 - self.memory
        self.tokens += share * (accepted - self.tokens)
        self.offered += share * (offered - self.offered)
        self.nodes += share * (nodes - self.nodes)
        self.draft_ns += share * (draft_ns - self.draft_ns)
        if self.everybodys is not None:
            self.everybodys.observe(offered, accepted, nodes, draft_ns)


class ModelGains:
    """What rounds with the draft model brought in all requests, by temperature."""

    def __init__(self) -> None:
        self._by_step: dict[int, ModelGain] = {}

    def of(
        self, temperature: float, draft_token_ns: float, prefill_token_ns: float = 0.0
    ) -> ModelGain:
        """A request's own, which starts where the others are; a draft forward's time, at first."""
        step = step_of(temperature)
        if step not in self._by_step:
            self._by_step[step] = ModelGain(
                USUAL_FORWARDS * draft_token_ns, prefill_token_ns, memory=LONG_MEMORY
            )
        known = self._by_step[step]
        return dataclasses.replace(known, memory=MEMORY, everybodys=known)
