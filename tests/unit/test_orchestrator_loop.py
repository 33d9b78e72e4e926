"""The loop between services that are scripted: what it learns, and what it does not."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from draftloop.config import bundled_model
from draftloop.errors import Unavailable
from draftloop.model_info import CostPoint
from draftloop.request import GenerationRequest, SamplingParameters
from draftloop.speculation import SPECULATIVE, Speculation
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
from orchestrator.choice import DraftChoice
from orchestrator.costs import VerifyCost
from orchestrator.drafting import Drafting
from orchestrator.figures import SpeculationFigures
from orchestrator.gains import Gain
from orchestrator.loop import Generation
from orchestrator.text import TextStream
from orchestrator.tokenizer import Tokenizer

PROMPT = (5, 6, 7)
TOKEN = 20


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(bundled_model("verifier"))


class ScriptedVerifier:
    """Accepts every draft whole; loses its session in the rounds `loses`."""

    def __init__(self, loses: Sequence[int] = (), nodes_then: int = 64) -> None:
        self._loses = loses
        self._nodes_then = nodes_then
        self.max_draft_nodes = 64
        self._round = 0
        self.reopened = 0
        self.closed = False

    async def open(self, committed: Sequence[int]) -> Verification:
        return self._says(committed, EMPTY_TREE)

    async def verify(self, committed: Sequence[int], draft: DraftTree) -> Verification:
        self._round += 1
        if self._round in self._loses:
            self.reopened += 1
            self.max_draft_nodes = self._nodes_then
            return self._says(committed, EMPTY_TREE)
        return self._says(committed, draft)

    async def close(self) -> None:
        self.closed = True

    def _says(self, committed: Sequence[int], draft: DraftTree) -> Verification:
        count = len(draft)
        emitted = (*draft.token_ids, TOKEN)
        verdict = Verdict(tuple(range(count)), emitted, emitted[0], (TOKEN,) * count)
        return Verification(verdict=verdict, committed_length=len(committed))


class ScriptedDrafting(Drafting):
    """Two tokens a round."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.closed = False

    async def propose(
        self, committed: Sequence[int], verdict: Verdict | None, budget: DraftBudget
    ) -> Draft:
        count = min(2, budget.max_depth)
        tree = DraftTree.chain([TOKEN] * count, TokenSource.DRAFT_MODEL)
        return Draft(tree=tree, committed_length=len(committed))

    async def close(self) -> None:
        self.closed = True


@dataclass(slots=True)
class WatchedController(Controller):
    """Writes down what it is told."""

    rounds: list[tuple[int, int]] = field(default_factory=list)

    def observe(self, nodes: int, emitted: int, round_ns: int, *, modelled: bool = True) -> None:
        self.rounds.append((nodes, emitted))


def generation(tokenizer: Tokenizer, verifier: ScriptedVerifier, drafting: Drafting) -> Generation:
    request = GenerationRequest(
        request_id="one",
        prompt=PROMPT,
        sampling=SamplingParameters(),
        max_tokens=10,
        speculation=Speculation(strategy=SPECULATIVE),
    )
    controller = WatchedController(
        max_nodes=4, verify_cost=VerifyCost((CostPoint(1, 1000),)), draft_token_ns=0.0, fixed=True
    )
    return Generation(
        request=request,
        verifier=verifier,  # type: ignore[arg-type]
        drafting=drafting,
        controller=controller,
        text=TextStream(tokenizer, PROMPT, ()),
        context_length=64,
        figures=SpeculationFigures(),
    )


async def test_a_draft_that_a_lost_session_never_judged_is_not_counted(
    tokenizer: Tokenizer,
) -> None:
    """Neither as refused, nor is the time of reopening taken for that of a round."""
    verifier = ScriptedVerifier(loses=(2,))
    running = generation(tokenizer, verifier, ScriptedDrafting())
    pieces = [piece async for piece in running.run()]
    assert [len(piece.token_ids) for piece in pieces] == [1, 3, 1, 3, 2]
    assert isinstance(running.controller, WatchedController)
    assert running.controller.rounds == [(2, 3), (2, 3), (1, 2)]
    assert running.figures.draft_tokens == running.figures.accepted_tokens == 5
    assert running.figures.reopened_sessions == 1


async def test_a_verifier_that_takes_fewer_nodes_gets_no_more(tokenizer: Tokenizer) -> None:
    running = generation(tokenizer, ScriptedVerifier(loses=(2,), nodes_then=1), ScriptedDrafting())
    pieces = [piece async for piece in running.run()]
    assert [len(piece.token_ids) for piece in pieces] == [1, 3, 1, 2, 2, 1]


async def test_nor_does_it_speak_against_drafting(tokenizer: Tokenizer) -> None:
    """What drafts bring is learnt from those that were judged."""

    class Pairs:
        def propose(self, committed: Sequence[int], budget: DraftBudget) -> DraftTree:
            return DraftTree.chain([TOKEN] * min(2, budget.max_depth), TokenSource.PHRASE)

        def observe(self, *said: object) -> None:
            pass

    class Counted(Gain):
        def observe(self, offered: float, accepted: int, nodes: int, draft_ns: int) -> None:
            seen.append((accepted, nodes))

    seen: list[tuple[int, int]] = []
    running = generation(tokenizer, ScriptedVerifier(loses=(2,)), Drafting(None, None))
    choice = DraftChoice(running.controller, Counted(deque([0.0])))
    running.drafting = Drafting(Pairs(), None, choice)
    assert [len(piece.token_ids) async for piece in running.run()] == [1, 3, 1, 3, 2]
    assert seen == [(2, 2), (2, 2), (1, 1)]


async def test_both_sessions_are_closed_however_it_ends(tokenizer: Tokenizer) -> None:
    class Broken(ScriptedVerifier):
        async def verify(self, committed: Sequence[int], draft: DraftTree) -> Verification:
            raise Unavailable("gone")

    for verifier, error in ((ScriptedVerifier(), None), (Broken(), Unavailable)):
        drafting = ScriptedDrafting()
        pieces = generation(tokenizer, verifier, drafting).run()
        if error is None:
            await anext(pieces)
            await pieces.aclose()
        else:
            with pytest.raises(error):
                [piece async for piece in pieces]
        assert verifier.closed and drafting.closed
