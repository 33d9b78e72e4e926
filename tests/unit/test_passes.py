"""Drafts and verdicts in one compiled call equal those computed forward by forward."""

from __future__ import annotations

import threading
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeVar, cast
from unittest import mock

import pytest

from drafter_service.session import DrafterSession, SessionRequest
from drafter_service.strategies import STRATEGIES, Strategy
from drafter_service.strategies.fused import Fused
from drafter_service.strategies.ouroboros import Ouroboros
from draftloop.config import bundled_model
from draftloop.lookahead import LookaheadParameters, LookaheadWindow
from draftloop.request import SamplingParameters
from draftloop.runtime.engine import Engine
from draftloop.runtime.forward import Forward, Task
from draftloop.runtime.model import LanguageModel
from draftloop.runtime.prepared import Passes
from draftloop.tree import (
    EMPTY_TREE,
    DraftBudget,
    DraftEnd,
    DraftTree,
    ServiceTimings,
    TokenSource,
    Verdict,
)
from tests.support.toy_model import llama_config, load_model, save_model
from verifier_service import session as verifier
from verifier_service.round import verify

T = TypeVar("T")

PHRASE = TokenSource.PHRASE
PROMPT = list(range(20, 50))
AHEAD = 256  # nodes of a draft as large as what was drafted ahead
NO_STOP = {"seed": 3}  # in a draft of 24 tokens of a toy model
COMPILED = ("speculative", "opt_tree", "fused", "ouroboros")
GREEDY, SAMPLED = {"temperature": 0.0}, {"temperature": 0.8}
LAWS: tuple[dict[str, Any], ...] = (
    GREEDY, SAMPLED,
    {**SAMPLED, "top_p": 0.9}, {**SAMPLED, "top_k": 5}, {**SAMPLED, "min_p": 0.05},
    {**SAMPLED, "top_k": 40, "top_p": 0.8, "min_p": 0.01}, {**GREEDY, "top_p": 0.5},
)  # fmt: skip


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load_model(save_model(tmp_path_factory.mktemp("toy")))


@pytest.fixture(scope="module")
def bundled() -> LanguageModel:
    return load_model(bundled_model("drafter"), dtype="bfloat16", max_draft_nodes=40)


def new_strategy(model: LanguageModel, name: str, *, alone: bool, **more: Any) -> Strategy:
    sampling = SamplingParameters(**{"temperature": 0.8, "seed": 5, **more.pop("sampling", {})})
    request = SessionRequest(
        session_id="test", token_ids=tuple(PROMPT), prompt_length=len(PROMPT), sampling=sampling,
        strategy=name, stop_token_ids=frozenset(model.stop_token_ids), **more,
    )  # fmt: skip
    session = DrafterSession(model, model.acquire(), request, 512, is_alone=lambda: alone)
    return STRATEGIES[name](session)


def draft_with_engine(
    strategy: Strategy, offer: DraftTree = EMPTY_TREE, **limits: Any
) -> DraftTree:
    """The draft as the service makes it, by an engine."""
    engine = Engine()
    strategy.offer(offer)
    budget = DraftBudget(**{"max_nodes": 14, "max_depth": 6, **limits})
    try:
        return engine.submit(strategy.propose(budget)).result()
    finally:
        engine.stop()


def commit_and_observe(strategy: Strategy, tokens: list[int]) -> None:
    session = strategy.session
    session.commit(tokens, len(session.committed) + len(tokens))
    strategy.observe(tokens, Verdict((), tuple(tokens[-1:]), tokens[-1]))


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("fixture", ["toy", "bundled"])
def test_draft_in_one_call_matches_forward_by_forward(
    request: pytest.FixtureRequest, fixture: str, name: str, law: dict[str, Any]
) -> None:
    model: LanguageModel = request.getfixturevalue(fixture)
    strategies = [new_strategy(model, name, alone=alone, sampling=law) for alone in (True, False)]
    offers = [
        EMPTY_TREE,
        DraftTree.chain([21, 22, 23], PHRASE, [0.9, 0.8, 0.7]),
        DraftTree((31, 32, 33, 34), (-1, 0, 0, -1), (0.5, 0.5, 0.3, 0.4), (PHRASE,) * 4),
    ]
    try:
        for number in range(12):
            offer = offers[number % len(offers)]
            trees = [draft_with_engine(strategy, offer) for strategy in strategies]
            assert trees[0] == trees[1]
            assert strategies[0].end == strategies[1].end
            slots = [strategy.session.slot for strategy in strategies]
            assert slots[0].pending_token_ids == slots[1].pending_token_ids
            assert slots[0].pending_parents == slots[1].pending_parents
            assert slots[0].length == slots[1].length
            # The text follows the tree, leaves it after a few tokens, or is entirely different.
            path = trees[0].path(number % len(trees[0]))
            tokens = [*(trees[0].token_ids[node] for node in path), 40 + number]
            for strategy in strategies:
                commit_and_observe(strategy, tokens if number % 4 else [7] * (number + 1))
    finally:
        for strategy in strategies:
            model.cache.release(strategy.session.slot)


@pytest.mark.parametrize("correct", [0, 1, 3])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_chain_with_guesses_is_that_of_the_draft_model(
    bundled: LanguageModel, law: dict[str, Any], correct: int
) -> None:
    """`correct` of the first forward's guesses are accepted; later forwards have none."""
    reference = new_strategy(bundled, "speculative", alone=False, sampling=law)
    guessing = cast(Ouroboros, new_strategy(bundled, "ouroboros", alone=True, sampling=law))
    guessing._window = LookaheadWindow(LookaheadParameters(), PROMPT)  # guesses are wanted
    for number in range(12):
        expected = draft_with_engine(reference)
        guessed = [*expected.token_ids[:correct], 40]
        guesses = mock.Mock(
            side_effect=chain([DraftTree.chain(guessed, PHRASE)], repeat(EMPTY_TREE))
        )
        with (
            mock.patch.object(guessing, "_next_guesses", mock.Mock(side_effect=guesses)),
            mock.patch.object(guessing._guessing, "should_guess", lambda: True),
        ):
            assert all(isinstance(request, Forward) for request in engine_requests(guessing))
        assert guessing._last_draft.token_ids == expected.token_ids
        assert guessing.proposed_nodes == len(expected)
        for strategy in (reference, guessing):
            commit_and_observe(strategy, [*expected.token_ids[: 1 + number % 3]])
    for strategy in (reference, guessing):
        bundled.cache.release(strategy.session.slot)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_chain_continues_in_one_call_after_a_forward_of_its_own(
    bundled: LanguageModel, law: dict[str, Any]
) -> None:
    """The first forward is one of its own if many committed tokens have to be run before it."""
    reference = new_strategy(bundled, "speculative", alone=False, sampling=law)
    both = [new_strategy(bundled, "ouroboros", alone=one, sampling=law) for one in (True, False)]
    request_counts = []

    def take(strategy: Ouroboros) -> list[object]:
        """A draft whose first forward is one of its own; returns what the engine was asked."""
        passes, turns = strategy._passes, iter((None,))
        with mock.patch.object(strategy, "_passes", lambda *args: next(turns, passes(*args))):
            return engine_requests(strategy)

    in_one_call, stepwise = (cast(Ouroboros, strategy) for strategy in both)
    for number in range(12):
        expected = draft_with_engine(reference)
        requests = take(in_one_call)
        assert [type(request) for request in requests] == [Forward, Passes][: len(requests)]
        assert all(isinstance(request, Forward) for request in take(stepwise))
        request_counts.append(len(requests))
        draft = in_one_call._last_draft
        assert draft == stepwise._last_draft and draft.token_ids == expected.token_ids
        assert in_one_call._last_scores == pytest.approx(stepwise._last_scores)
        assert in_one_call.end == stepwise.end
        rows = [slot.rows[:, : slot.pending].tolist() for slot in (s.session.slot for s in both)]
        assert rows[0] == rows[1]
        for strategy in (reference, *both):
            commit_and_observe(strategy, [*draft.token_ids[: 1 + number % 3]])
    assert 2 in request_counts
    for strategy in (reference, *both):
        bundled.cache.release(strategy.session.slot)


def engine_requests(strategy: Strategy, **limits: Any) -> list[object]:
    """What a draft requests from the engine."""
    budget = DraftBudget(**{"max_nodes": 14, "max_depth": 6, **limits})
    return run_without_engine(strategy.propose(budget), strategy.session.model)[1]


def run_without_engine(task: Task[T], model: LanguageModel) -> tuple[T, list[object]]:
    """The result of a task run without an engine, and what it requested."""
    requests: list[object] = []
    answer: Any = None
    while True:
        try:
            request = next(task) if answer is None else task.send(answer)
        except StopIteration as end:
            return cast(T, end.value), requests
        requests.append(request)
        if isinstance(request, Passes):
            model.run(request)
            answer = None
        else:
            [answer] = model.forward([request])


@pytest.mark.parametrize("name", COMPILED)
def test_session_running_alone_asks_the_engine_once(toy: LanguageModel, name: str) -> None:
    strategy = new_strategy(toy, name, alone=True)
    assert [type(request) for request in engine_requests(strategy, max_nodes=5)] == [Passes]
    toy.cache.release(strategy.session.slot)


@pytest.mark.parametrize(
    "sampling",
    [{"repetition_penalty": 1.2}, {"frequency_penalty": 0.1}, {"logit_bias": ((3, 1.0),)}],
)
def test_unsupported_sampling_runs_forward_by_forward(
    toy: LanguageModel, sampling: dict[str, Any]
) -> None:
    # The compiled call has neither penalties nor biases.
    strategy = new_strategy(toy, "fused", alone=True, sampling=sampling)
    requests = engine_requests(strategy)
    assert requests and not any(isinstance(request, Passes) for request in requests)
    toy.cache.release(strategy.session.slot)


def test_long_draft_draws_noise_during_the_call(toy: LanguageModel) -> None:
    """Noise is drawn during the draft, and rows that the slot lacks are freed."""
    for name in ("speculative", "opt_tree", "fused"):
        strategies = [
            new_strategy(toy, name, alone=alone, sampling=NO_STOP) for alone in (True, False)
        ]
        trees = [draft_with_engine(strategy, max_nodes=24, max_depth=24) for strategy in strategies]
        assert trees[0] == trees[1]
        assert name != "speculative" or strategies[0].end is DraftEnd.DEPTH
        for strategy in strategies:
            toy.cache.release(strategy.session.slot)


def test_nodes_drafted_ahead_fit_the_arrays(tmp_path: Path) -> None:
    """Children of nodes drafted ahead are known without a forward, level after level.

    The draft before is short, so that most of the next tree was drafted ahead.
    """
    folder = save_model(tmp_path, llama_config(initializer_range=1.0, hidden_size=64))
    model = load_model(folder, max_draft_nodes=AHEAD)
    small, large = (DraftBudget(max_nodes=nodes, max_depth=AHEAD) for nodes in (4, AHEAD))
    for seed in range(3):
        strategy = new_strategy(model, "fused", alone=True, sampling={"seed": seed})
        assert isinstance(strategy, Fused)
        for budget in (small, large, small, large):
            tree, _ = run_without_engine(strategy.propose(budget), model)
            arrays = strategy.candidates._tree
            assert arrays.state["nodes"][0] < len(arrays.nodes)
            run_without_engine(strategy.draft_ahead(lambda: True), model)
            commit_and_observe(strategy, [tree.token_ids[0]])
        model.cache.release(strategy.session.slot)


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("name", COMPILED)
def test_draft_in_a_nearly_full_slot_matches_forward_by_forward(
    tmp_path: Path, name: str, most: int
) -> None:
    model = load_model(save_model(tmp_path), max_draft_nodes=most)
    strategies = [new_strategy(model, name, alone=alone) for alone in (True, False)]
    for _ in range(3):
        offer = DraftTree.chain([21, 22, 23][:most], PHRASE, [0.9, 0.8, 0.7][:most])
        trees = [draft_with_engine(strategy, offer, max_depth=9) for strategy in strategies]
        assert trees[0] == trees[1] and 0 < len(trees[0]) <= most
        for strategy in strategies:
            commit_and_observe(strategy, [trees[0].token_ids[0], 9])


@pytest.mark.parametrize("name", COMPILED)
def test_draft_after_many_committed_tokens_matches_forward_by_forward(
    toy: LanguageModel, name: str
) -> None:
    """More tokens were committed in the meantime than a round's forward takes."""
    strategies = [new_strategy(toy, name, alone=alone) for alone in (True, False)]
    for strategy in strategies:
        draft_with_engine(strategy)
        commit_and_observe(strategy, list(range(1, 60)))
    trees = [draft_with_engine(strategy) for strategy in strategies]
    assert trees[0] == trees[1] and len(trees[0]) > 0
    for strategy in strategies:
        toy.cache.release(strategy.session.slot)


def test_forwards_within_one_call_are_counted(toy: LanguageModel) -> None:
    engine, timings = Engine(), ServiceTimings()
    strategy = new_strategy(toy, "speculative", alone=True)
    budget = DraftBudget(max_nodes=5, max_depth=5)
    engine.submit(strategy.propose(budget), timings).result()
    assert timings.forwards == 5 == engine.forwards
    assert 0 < timings.forward_ns < 10**10
    engine.stop()
    toy.cache.release(strategy.session.slot)


def test_stop_token_ends_a_chain(tmp_path: Path) -> None:
    model = load_model(save_model(tmp_path, llama_config()))
    chain = draft_with_engine(new_strategy(model, "speculative", alone=True, sampling=GREEDY))
    model.stop_token_ids = (chain.token_ids[2],)
    strategy = new_strategy(model, "speculative", alone=True, sampling=GREEDY)
    assert draft_with_engine(strategy).token_ids == chain.token_ids[:3]
    assert strategy.end is DraftEnd.TEXT


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("successors", [0, 1, 8])
@pytest.mark.parametrize("fixture", ["toy", "bundled"])
def test_verdict_in_one_call_matches_forward_by_forward(
    request: pytest.FixtureRequest, fixture: str, law: dict[str, Any], successors: int
) -> None:
    model: LanguageModel = request.getfixturevalue(fixture)
    engine = Engine()
    sampling = SamplingParameters(**law, seed=5)
    parameters = verifier.SessionRequest(
        session_id="test", token_ids=tuple(PROMPT), prompt_length=len(PROMPT), sampling=sampling,
        successors=successors,
    )  # fmt: skip
    sessions = [
        verifier.VerifierSession(model, model.acquire(), parameters, is_alone=partial(bool, alone))
        for alone in (True, False)
    ]
    draft = EMPTY_TREE
    for number in range(10):
        verdicts = [
            engine.submit(verify(session, draft, chunk_tokens=512)).result() for session in sessions
        ]
        assert verdicts[0] == verdicts[1]
        assert len(verdicts[0].successor_ids) == successors * (len(draft) + 1)
        slots = [session.slot for session in sessions]
        assert slots[0].rows[:, : slots[0].pending].tolist() == (
            slots[1].rows[:, : slots[1].pending].tolist()
        )
        # The target's own tokens as a chain that may be right, and a branch beside it.
        token = verdicts[0].root_prediction
        draft = DraftTree(
            (token, 40 + number, 41, 42), (-1, 0, -1 if token != 41 else 0, 1), (0.5,) * 4,
            (PHRASE,) * 4,
        )  # fmt: skip
    engine.stop()
    for session in sessions:
        model.cache.release(session.slot)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("filters", [{"top_p": 0.3}, {"top_k": 2}, {"min_p": 0.5}], ids=str)
def test_log_probabilities_are_computed_before_filters(
    toy: LanguageModel, filters: dict[str, Any], alone: bool
) -> None:
    """The compiled call filters logits in place, and could report probabilities after that."""
    request = verifier.SessionRequest(
        session_id="test", token_ids=tuple(PROMPT), prompt_length=len(PROMPT), logprobs=8,
        sampling=SamplingParameters(temperature=0.8, seed=5, **filters),
    )  # fmt: skip
    session = verifier.VerifierSession(toy, toy.acquire(), request, is_alone=lambda: alone)
    verdict, _ = run_without_engine(verify(session, EMPTY_TREE, chunk_tokens=512), toy)
    slot = toy.acquire()
    [logits] = toy.forward([Forward(toy, slot, PROMPT, logits_from=len(PROMPT) - 1)])
    best = logits[0].log_softmax(dim=-1).topk(8)
    [logprobs] = verdict.logprobs
    assert [token for token, _ in logprobs.top] == best.indices.tolist()
    assert [logprob for _, logprob in logprobs.top] == pytest.approx(best.values.tolist())
    for each in (session.slot, slot):
        toy.cache.release(each)


def test_sessions_waiting_together_share_a_forward(toy: LanguageModel) -> None:
    """Neither session counts as running alone, whichever was submitted first."""
    engine = Engine()
    sessions = []
    for seed in (1, 2):
        request = verifier.SessionRequest(
            session_id="test", token_ids=tuple(PROMPT), prompt_length=len(PROMPT),
            sampling=SamplingParameters(temperature=0.8, seed=seed),
        )  # fmt: skip
        session = verifier.VerifierSession(
            toy, toy.acquire(), request, is_alone=lambda: engine.is_alone
        )
        sessions.append(session)
    gate, timings = threading.Event(), [ServiceTimings(), ServiceTimings()]
    engine.call(gate.wait)
    both = [
        engine.submit(verify(session, EMPTY_TREE, chunk_tokens=512), timing, session.slot)
        for session, timing in zip(sessions, timings, strict=True)
    ]
    gate.set()
    assert all(future.result().emitted_token_ids for future in both)
    assert [timing.batch_size for timing in timings] == [2, 2]
    engine.stop()
    for session in sessions:
        toy.cache.release(session.slot)
