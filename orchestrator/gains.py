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


@dataclass(slots=True)
class ModelGain:
    """Rounds with the draft model: means of accepted tokens, of the offer, of nodes and time."""

    draft_ns: float
    tokens: float = USUAL_TOKENS
    offered: float = 0.0
    nodes: float = USUAL_NODES
    memory: float = MEMORY
    everybodys: ModelGain | None = None  # learns too
    # One for all requests: each trying by itself would cost short ones much.
    patience: Patience = field(default_factory=lambda: Patience(LONGEST_WITHOUT))

    def worth(self, offered: float, controller: Controller) -> float:
        """Expected tokens of a round, beyond those that its time brings in anyway.

        `offered`: accepted tokens that the free sources promise for this round.
        """
        expected = self.tokens + SHARE_OF_OFFER * (offered - self.offered)
        cost = controller.verify_cost.nanoseconds(self.nodes) + self.draft_ns
        return 1 + expected - controller.rate * cost

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

    def of(self, temperature: float, draft_token_ns: float) -> ModelGain:
        """A request's own, which starts where the others are; a draft forward's time, at first."""
        step = step_of(temperature)
        if step not in self._by_step:
            first = ModelGain(USUAL_FORWARDS * draft_token_ns, memory=LONG_MEMORY)
            self._by_step[step] = first
        known = self._by_step[step]
        return dataclasses.replace(known, memory=MEMORY, everybodys=known)
