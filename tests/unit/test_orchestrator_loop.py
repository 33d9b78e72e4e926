"""The generation loop between scripted services: what it learns and what it ignores."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence
from unittest.mock import Mock

import pytest

from draftloop.config import bundled_model
from draftloop.errors import Unavailable
from draftloop.logprobs import TokenLogprobs
from draftloop.model_info import CostPoint
from draftloop.phrase import MAX_CONTEXT
from draftloop.tree import (
    EMPTY_TREE,
    Draft,
    DraftBudget,
    DraftTree,
    ServiceTimings,
    TokenSource,
    Verdict,
    Verification,
)
from orchestrator.choice import DraftChoice
from orchestrator.costs import VerifyCost
from orchestrator.drafting import Drafting
from orchestrator.figures import SpeculationFigures
from orchestrator.gains import Gain, SharedGain
from orchestrator.loop import LENGTH, STOP, Generation
from orchestrator.outcome import RoundOutcome
from orchestrator.text import TextStream
from orchestrator.tokenizer import Tokenizer
from tests.support.scripted_loop import (
    FORWARDS,
    PROMPT,
    TOKEN,
    ScriptedDrafting,
    ScriptedVerifier,
    WatchedController,
    new_generation,
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(bundled_model("verifier"))


async def test_draft_of_a_lost_session_is_not_counted(
    tokenizer: Tokenizer,
) -> None:
    """The draft does not count as rejected, and reopening does not count as round time."""
    verifier = ScriptedVerifier(lost_rounds=(2,))
    running = new_generation(tokenizer, verifier, ScriptedDrafting())
    pieces = [piece async for piece in running.run()]
    assert [len(piece.token_ids) for piece in pieces] == [1, 3, 1, 3, 2]
    assert isinstance(running.controller, WatchedController)
    assert running.controller.rounds == [(2, 3), (2, 3), (1, 2)]
    assert running.figures.draft_tokens == running.figures.accepted_tokens == 5
    assert running.figures.reopened_sessions == 1


async def test_wait_for_a_drafter_in_vain_is_not_part_of_the_pace(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One second lost used to make time look cheap for the next ten rounds."""
    clock, figures = Mock(), SpeculationFigures()
    clock.perf_counter_ns.return_value = 0
    monkeypatch.setattr("orchestrator.loop.time", clock)

    class Failing(ScriptedDrafting):
        async def propose(self, committed: Sequence[int], budget: DraftBudget) -> Draft:
            figures.fallback_rounds += 1
            clock.perf_counter_ns.return_value += 10**9
            return Draft(tree=EMPTY_TREE, committed_length=len(committed))

    class Paced(WatchedController):
        __slots__ = ()

        def observe(
            self, nodes: int, emitted: int, round_ns: int, *, used_draft_model: bool = True
        ) -> None:
            self.rounds.append((nodes, round_ns))

    running = new_generation(tokenizer, ScriptedVerifier(), Failing())
    running.request = dataclasses.replace(running.request, max_tokens=4)
    running.figures = figures
    running.controller = Paced(max_nodes=4, verify_cost=VerifyCost(FORWARDS), fixed=True)
    assert [piece async for piece in running.run()]
    await asyncio.sleep(0)
    assert running.controller.rounds == [(0, 0)] * 3


async def test_draft_respects_the_node_limit_of_a_new_verifier(tokenizer: Tokenizer) -> None:
    running = new_generation(
        tokenizer, ScriptedVerifier(lost_rounds=(2,), nodes_after=1), ScriptedDrafting()
    )
    pieces = [piece async for piece in running.run()]
    assert [len(piece.token_ids) for piece in pieces] == [1, 3, 1, 2, 2, 1]


async def test_running_request_pays_what_the_services_latest_curve_says(
    tokenizer: Tokenizer,
) -> None:
    verifier = ScriptedVerifier()
    running = new_generation(tokenizer, verifier, ScriptedDrafting())
    cost = running.controller.verify_cost
    pieces = running.run()
    await anext(pieces)
    await anext(pieces)
    assert cost.curve == FORWARDS
    verifier.cost_curve = (CostPoint(1, 5000), CostPoint(3, 6000))
    [piece async for piece in pieces]
    await asyncio.sleep(0)
    assert cost.curve == verifier.cost_curve


async def test_draft_of_a_lost_session_does_not_lower_the_gain(tokenizer: Tokenizer) -> None:
    """Gains are learned only from drafts that were verified."""

    class Pairs:
        def index_steps(self) -> Iterator[None]:
            return iter(())

        def propose(self, committed: Sequence[int], budget: DraftBudget) -> DraftTree:
            return DraftTree.chain([TOKEN] * min(2, budget.max_depth), TokenSource.PHRASE)

        def observe(self, *_: object) -> None:
            pass

    class Counted(Gain):
        def observe(self, accepted: int, nodes: int, *_: object) -> int:
            observed.append((accepted, nodes))
            return len(observed)

    observed: list[tuple[int, int]] = []
    running = new_generation(tokenizer, ScriptedVerifier(lost_rounds=(2,)), Drafting(None, None))
    choice = DraftChoice(running.controller, Counted(SharedGain(deque([0.0]))))
    running.drafting = Drafting(Pairs(), None, choice)
    assert [len(piece.token_ids) async for piece in running.run()] == [1, 3, 1, 3, 2]
    assert observed == [(2, 2), (2, 2), (1, 1)]


async def test_both_sessions_are_closed_however_generation_ends(tokenizer: Tokenizer) -> None:
    class Broken(ScriptedVerifier):
        async def verify(self, committed: Sequence[int], draft: DraftTree) -> Verification:
            raise Unavailable("gone")

    for verifier, error in ((ScriptedVerifier(), None), (Broken(), Unavailable)):
        drafting = ScriptedDrafting()
        pieces = new_generation(tokenizer, verifier, drafting).run()
        if error is None:
            await anext(pieces)
            await pieces.aclose()
        else:
            with pytest.raises(error):
                [piece async for piece in pieces]
        assert verifier.closed and drafting.closed


class FixedVerifier(ScriptedVerifier):
    """Emits these tokens, all accepted, with log-probabilities and the given timings."""

    def __init__(self, *rounds: Sequence[int], timings: ServiceTimings | None = None) -> None:
        super().__init__()
        self._rounds = iter(rounds)
        self._timings = timings or ServiceTimings()

    def _verification(self, committed: Sequence[int], draft: DraftTree) -> Verification:
        emitted = tuple(next(self._rounds))
        logprobs = tuple(TokenLogprobs(token, -1.0) for token in emitted)
        verdict = Verdict(
            tuple(range(len(draft))), emitted, emitted[0], (TOKEN,) * len(draft), logprobs=logprobs
        )
        return Verification(verdict=verdict, committed_length=len(committed), timings=self._timings)


class RecordingDrafting(ScriptedDrafting):
    """Records the depths of its budgets and the tokens that it observes."""

    def __init__(self, takes_s: float = 0.0) -> None:
        super().__init__()
        self.depths: list[int] = []
        self.new: list[int] = []
        self.contexts: list[list[int]] = []
        self.delays: list[float] = []
        self._takes_s = takes_s

    async def propose(self, committed: Sequence[int], budget: DraftBudget) -> Draft:
        self.depths.append(budget.max_depth)
        await asyncio.sleep(self._takes_s)
        draft = await super().propose(committed, budget)
        return dataclasses.replace(draft, timings=ServiceTimings(forwards=1))

    def observe(self, outcome: RoundOutcome) -> None:
        self.new.append(outcome.new_tokens)

    def observe_delay(self, nanoseconds: float) -> None:
        self.delays.append(nanoseconds)

    def learn(self, context: Sequence[int], draft: DraftTree, verdict: Verdict) -> None:
        self.contexts.append(list(context))


class SlowReadingSource:
    """A source whose prompt has many pieces; it drafts nothing."""

    def __init__(self, pieces: int) -> None:
        self.left = pieces
        self.calls: list[tuple[str, int]] = []

    def index_steps(self) -> Iterator[None]:
        while self.left:
            self.left -= 1
            yield

    def propose(self, committed: Sequence[int], budget: DraftBudget) -> DraftTree:
        self.calls.append(("propose", self.left))
        return EMPTY_TREE

    def observe(self, outcome: RoundOutcome) -> None:
        self.calls.append(("observe", self.left))


def generation_reading(
    tokenizer: Tokenizer, source: SlowReadingSource, max_tokens: int = 3
) -> Generation:
    running = new_generation(tokenizer, ScriptedVerifier(), Drafting(None, None))
    running.request = dataclasses.replace(running.request, max_tokens=max_tokens)
    choice = DraftChoice(running.controller, Gain(SharedGain(deque([0.0]))))
    running.drafting = Drafting(source, None, choice)
    return running


async def test_prompt_is_indexed_after_the_first_token_in_pieces(
    tokenizer: Tokenizer,
) -> None:
    """The prompt used to be indexed before admission, which blocked the event loop."""
    source = SlowReadingSource(500)
    pieces = generation_reading(tokenizer, source).run()
    iterations = 0
    async with contextlib.aclosing(pieces):
        assert len((await anext(pieces)).token_ids) == 1
        assert source.left > 400 and not source.calls
        next_piece = asyncio.ensure_future(anext(pieces))
        while not next_piece.done():
            await asyncio.sleep(0)
            iterations += 1
        assert iterations > 400
        assert source.calls == [("observe", 0), ("propose", 0), ("observe", 0)]


async def test_prompt_indexing_stops_when_the_request_ends(tokenizer: Tokenizer) -> None:
    source = SlowReadingSource(500)
    assert (
        len([piece async for piece in generation_reading(tokenizer, source, max_tokens=1).run()])
        == 1
    )
    await asyncio.sleep(0.01)
    assert source.left > 400 and not source.calls


async def test_full_context_ends_the_text_and_limits_drafts(
    tokenizer: Tokenizer,
) -> None:
    drafting = RecordingDrafting()
    running = new_generation(tokenizer, ScriptedVerifier(), drafting)
    running.context_length = len(PROMPT) + 6
    pieces = [piece async for piece in running.run()]
    assert [len(piece.token_ids) for piece in pieces] == [1, 3, 2]
    assert running.finish_reason == LENGTH and len(running.committed) == running.context_length
    assert drafting.depths == [4, 1]  # one token of room is left for the target's own


async def test_verifier_with_a_shorter_context_only_gets_shorter_drafts(
    tokenizer: Tokenizer,
) -> None:
    """At the end of that verifier's context the text goes on at another verifier."""
    drafting = RecordingDrafting()
    verifier = ScriptedVerifier(lost_rounds=(1,), context_after=len(PROMPT) + 6)
    running = new_generation(tokenizer, verifier, drafting)
    pieces = [piece async for piece in running.run()]
    assert drafting.depths == [4, 3, 0, 0, 0, 0, 0]
    assert [len(piece.token_ids) for piece in pieces] == [1, 1, 3, 1, 1, 1, 1, 1]


async def test_tokens_after_the_end_are_not_reported(tokenizer: Tokenizer) -> None:
    # Tokens after a stop token reach neither the client nor the drafting.
    drafting = RecordingDrafting()
    running = new_generation(tokenizer, FixedVerifier([TOKEN], [TOKEN, 21, 22]), drafting)
    running.request = dataclasses.replace(running.request, stop_token_ids=frozenset({21}))
    *_, last = [piece async for piece in running.run()]
    assert running.finish_reason == STOP and running.output == [TOKEN, TOKEN, 21]
    assert last.token_ids == (TOKEN, 21)
    assert last.sources == (TokenSource.DRAFT_MODEL,) * 2
    assert [entry.token_id for entry in last.logprobs] == [TOKEN, 21]
    assert drafting.new == [1, 2]


async def test_stop_text_ends_generation_within_a_round(tokenizer: Tokenizer) -> None:
    one, *more = tokenizer.encode("one two three four")
    running = new_generation(tokenizer, FixedVerifier([one], more), RecordingDrafting())
    running.text = TextStream(tokenizer, PROMPT, (" two",))
    pieces = [piece async for piece in running.run()]
    assert "".join(text for piece in pieces for text in piece.decode_texts()) == "one"
    assert running.finish_reason == STOP and running.output[-1] != more[-1]


async def test_stop_text_in_a_final_partial_character_is_the_finish_reason(
    tokenizer: Tokenizer,
) -> None:
    partial = tokenizer.encode("é")[0]
    running = new_generation(tokenizer, FixedVerifier([partial]), RecordingDrafting())
    running.request = dataclasses.replace(running.request, max_tokens=1)
    running.text = TextStream(tokenizer, PROMPT, ("\ufffd",))
    assert [piece.decode_texts() async for piece in running.run()] == [("",)]
    assert running.finish_reason == STOP


async def test_draft_time_is_not_counted_as_verification(tokenizer: Tokenizer) -> None:
    # The time of drafting does not count as part of a verification's cost.
    running = new_generation(tokenizer, ScriptedVerifier(), RecordingDrafting(takes_s=0.05))
    [piece async for piece in running.run()]
    assert running.controller.verify_cost.nanoseconds(2) < 0.025 * 1e9


@pytest.mark.parametrize(("sessions", "is_observed"), [(1, True), (2, False)])
async def test_shared_rounds_are_not_observed_as_draft_delays(
    tokenizer: Tokenizer, sessions: int, is_observed: bool
) -> None:
    # A round shared with other sessions says nothing about the delay that a draft causes.
    drafting = RecordingDrafting()
    verifier = FixedVerifier(
        [TOKEN], *[[TOKEN] * 3] * 3, timings=ServiceTimings(batch_size=sessions)
    )
    running = new_generation(tokenizer, verifier, drafting)
    [piece async for piece in running.run()]
    assert bool(drafting.delays) is is_observed


async def test_phrases_are_learned_with_their_context(
    tokenizer: Tokenizer,
) -> None:
    drafting = RecordingDrafting()
    verifier = FixedVerifier([11], [12, 13, 14], [15, 16, 17], [18, 19, 20], [21],
                    timings=ServiceTimings(cached_tokens=2))  # fmt: skip
    running = new_generation(tokenizer, verifier, drafting)
    [piece async for piece in running.run()]
    await asyncio.sleep(0)
    assert drafting.contexts[0] == [*PROMPT, 11]
    assert drafting.contexts[2] == [*PROMPT, 11, 12, 13, 14, 15, 16, 17][-MAX_CONTEXT:]
    assert running.cached_prompt_tokens == 2
