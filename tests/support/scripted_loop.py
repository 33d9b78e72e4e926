"""A request's loop between a verifier and a drafter that follow a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftloop.model_info import CostPoint
from draftloop.tree import (
    EMPTY_TREE,
    Draft,
    DraftBudget,
    DraftTree,
    TokenSource,
    Verdict,
    Verification,
)
from orchestrator.budget import Controller
from orchestrator.costs import VerifyCost
from orchestrator.drafting import Drafting
from orchestrator.figures import SpeculationFigures
from orchestrator.loop import Generation
from orchestrator.text import TextStream
from orchestrator.tokenizer import Tokenizer
from tests.support.generation_request import generation_request

REQUEST = generation_request(max_tokens=10)
PROMPT = REQUEST.prompt
TOKEN = 20
FORWARDS: tuple[CostPoint, ...] = (CostPoint(1, 1000),)


class ScriptedVerifier:
    """Accepts every draft whole; loses its session in the rounds `lost_rounds`."""

    def __init__(
        self, lost_rounds: Sequence[int] = (), nodes_after: int = 64, context_after: int = 64
    ) -> None:
        self._lost_rounds = lost_rounds
        self._nodes_after, self._context_after = nodes_after, context_after
        self.max_draft_nodes = self.context_length = 64
        self.cost_curve = FORWARDS
        self._round = 0
        self.reopened = 0
        self.closed = False

    async def open(self, committed: Sequence[int]) -> Verification:
        """The first token."""
        return self._verification(committed, EMPTY_TREE)

    async def verify(self, committed: Sequence[int], draft: DraftTree) -> Verification:
        """All of the draft's tokens and one more; only that one if the session was lost."""
        self._round += 1
        if self._round in self._lost_rounds:
            self.reopened += 1
            self.max_draft_nodes, self.context_length = self._nodes_after, self._context_after
            return self._verification(committed, EMPTY_TREE)
        return self._verification(committed, draft)

    async def close(self) -> None:
        """Notes that it was closed."""
        self.closed = True

    def _verification(self, committed: Sequence[int], draft: DraftTree) -> Verification:
        count = len(draft)
        emitted = (*draft.token_ids, TOKEN)
        verdict = Verdict(tuple(range(count)), emitted, emitted[0], (TOKEN,) * count)
        return Verification(verdict=verdict, committed_length=len(committed))


class ScriptedDrafting(Drafting):
    """Drafts two tokens per round."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.closed = False

    async def propose(self, committed: Sequence[int], budget: DraftBudget) -> Draft:
        """A chain of two tokens, or of as many as the budget allows."""
        count = min(2, budget.max_depth)
        tree = DraftTree.chain([TOKEN] * count, TokenSource.DRAFT_MODEL)
        return Draft(tree=tree, committed_length=len(committed))

    async def close(self) -> None:
        """Notes that it was closed."""
        self.closed = True


@dataclass(slots=True)
class WatchedController(Controller):
    """Records what it observes."""

    rounds: list[tuple[int, int]] = field(default_factory=list)

    def observe(
        self, nodes: int, emitted: int, round_ns: int, *, used_draft_model: bool = True
    ) -> None:
        """Notes the round, and does not change prices."""
        self.rounds.append((nodes, emitted))


def new_generation(
    tokenizer: Tokenizer, verifier: ScriptedVerifier, drafting: Drafting
) -> Generation:
    """A request for ten tokens after `PROMPT`, with drafts of at most four nodes."""
    controller = WatchedController(max_nodes=4, verify_cost=VerifyCost(FORWARDS), fixed=True)
    return Generation(
        request=REQUEST,
        verifier=verifier,  # type: ignore[arg-type]
        drafting=drafting,
        controller=controller,
        text=TextStream(tokenizer, PROMPT, ()),
        context_length=64,
        figures=SpeculationFigures(),
    )
