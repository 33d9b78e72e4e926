"""Ouroboros: the window survives small drafts, and a cut chain is scored by what is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from drafter_service.session import DrafterSession, SessionRequest
from drafter_service.shared import StrategyFactory
from drafter_service.strategies import Strategy
from drafter_service.strategies.chain import Drafted
from drafter_service.strategies.ouroboros import Ouroboros
from draftloop.lookahead import LookaheadParameters
from draftloop.request import SamplingParameters
from draftloop.speculation import OuroborosParameters
from draftloop.tree import DraftBudget, DraftEnd, DraftTree, TokenSource, Verdict
from phrase_store.config import PhraseSettings
from phrase_store.session import PhraseSession
from phrase_store.store import PhraseStore
from tests.support.toy_model import ScriptedModel, TableModel, run

VOCABULARY = 12
BUDGET = DraftBudget(max_nodes=32, max_depth=32)
TEXT = [(number * number + number // 7) % VOCABULARY for number in range(200)]


def model_of(context_length: int = 600) -> Any:
    table = TableModel(VOCABULARY, seed=1, memory=2)
    return ScriptedModel(
        lambda prefix: table.logits([0, *prefix[-2:]]), VOCABULARY, max_draft_nodes=64,
        context_length=context_length,
    )  # fmt: skip


def request_of(text: list[int], strategy: str = "ouroboros", **more: Any) -> SessionRequest:
    return SessionRequest(
        session_id="test", token_ids=tuple(text), prompt_length=len(text), strategy=strategy,
        sampling=SamplingParameters(), **more,
    )  # fmt: skip


def new_strategy(
    lookahead: LookaheadParameters, model: Any = None, text: list[int] = TEXT, **parts: Any
) -> Ouroboros:
    """The strategy in a new session whose prompt has been run."""
    model = model or model_of()
    stops = frozenset(model.stop_token_ids)
    parameters = OuroborosParameters(lookahead=lookahead, **parts)
    request = request_of(text, ouroboros=parameters, stop_token_ids=stops)
    phrases = PhraseSession(text, 400, stop_token_ids=stops)
    session = DrafterSession(model, model.acquire(), request, 64, phrases=phrases)
    strategy = Ouroboros(session)
    run(strategy.prefill())
    return strategy


def play_rounds(strategy: Ouroboros, count: int, budget: DraftBudget = BUDGET) -> list[DraftTree]:
    """Drafts of which the target accepts the first token."""
    drafts = []
    for _ in range(count):
        draft = run(strategy.propose(budget))
        draft.validate(vocabulary_size=VOCABULARY, max_nodes=budget.max_nodes)
        new_tokens = draft.token_ids[:1]
        strategy.session.commit(new_tokens, len(strategy.session.committed) + 1)
        strategy.observe(new_tokens, None)
        drafts.append(draft)
    return drafts


@pytest.mark.parametrize(
    ("window", "ngram", "columns"), [(20, 7, 5), (15, 6, 6), (13, 5, 7), (3, 5, 3)]
)
def test_windows_of_the_paper_fit_the_default_node_limit(
    window: int, ngram: int, columns: int
) -> None:
    """Phrases used to take all nodes, so that the window lost its columns in the first round."""
    strategy = new_strategy(LookaheadParameters(window=window, ngram=ngram, candidates=window))
    strategy._guessing.should_guess = lambda: True  # type: ignore[method-assign]
    play_rounds(strategy, 10)
    assert strategy._window is not None
    assert [len(row) for row in strategy._window.rows] == [window] * (ngram - 1)
    guesses = strategy._next_guesses(Drafted())
    guesses.validate(vocabulary_size=VOCABULARY, max_nodes=63)
    assert len(strategy._window._last_row) >= columns


def test_cut_chain_promises_only_its_remaining_nodes() -> None:
    drafted = Drafted()
    for token, estimate in ((1, 0.9), (2, 0.9), (3, 0.5), (0, 0.2)):
        drafted.add(token, estimate, estimate)
    drafted.ended = True
    drafted.cut(4)
    assert drafted.ended and drafted.reach == pytest.approx(0.081)
    drafted.cut(2)
    assert drafted.token_ids == [1, 2] and len(drafted.sources) == 2
    assert drafted.reach == 0.9 * 0.9 and not drafted.ended


def test_draft_is_ordered_by_path_probability() -> None:
    """The caller may verify only the first nodes, and reports just how many."""
    strategy = new_strategy(LookaheadParameters(window=3, candidates=3), text=[*range(12)] * 10)
    for draft in play_rounds(strategy, 20):
        reached = draft.path_probabilities()
        assert reached == sorted(reached, reverse=True)


def test_calibration_learns_only_from_verified_nodes() -> None:
    strategy = new_strategy(LookaheadParameters(window=3, candidates=3), text=[*range(12)] * 10)
    draft = run(strategy.propose(BUDGET))
    assert len(draft) > 3
    strategy.session.commit(draft.token_ids[:2], len(strategy.session.committed) + 2)
    before = sum(strategy.session.experience.calibration.trials)
    verdict = Verdict((0,), draft.token_ids[:2], draft.token_ids[0], (draft.token_ids[1], 0))
    strategy.observe(draft.token_ids[:2], verdict)
    assert strategy._last_draft == draft.first(2)
    # two nodes had accepted parents; each counts for its run and for all runs together
    assert sum(strategy.session.experience.calibration.trials) - before == pytest.approx(4, abs=0.2)


def test_verdict_with_tokens_of_later_rounds_is_learned_by_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tokens of later rounds are learned as if each round had been reported separately."""
    calls: list[list[Any]] = []
    for at_once in (True, False):
        strategy = new_strategy(LookaheadParameters(window=3, candidates=3), text=[*range(12)] * 10)
        draft = run(strategy.propose(BUDGET))
        first_round = Verdict((0,), draft.token_ids[:2], draft.token_ids[0], (0,) * len(draft))
        learned: list[Any] = []
        monkeypatch.setattr(
            strategy._phrases, "learn",
            lambda context, draft, verdict, learned=learned: learned.append(
                (list(context), len(draft), verdict.emitted_token_ids)
            ),
        )  # fmt: skip
        emitted = [*draft.token_ids[:2], 3, 5]
        for tokens, verdict in (
            [(emitted, first_round)]
            if at_once
            else [(emitted[:2], first_round), (emitted[2:], None)]
        ):
            strategy.session.commit(tokens, len(strategy.session.committed) + len(tokens))
            strategy.observe(tokens, verdict)
        calls.append(learned)
    first, second = calls[0]
    assert (first[1], second[1], second[2]) == (len(draft), 0, (3, 5))
    assert [(one[0][-4:], *one[1:]) for one in calls[0]] == [
        (one[0][-4:], *one[1:]) for one in calls[1]
    ]


# Three tokens follow 3 about equally often, and 3 follows each of them; 11 is unrelated.
FORKS = [*[3, 5, 3, 6, 3, 7] * 4, 11]


def leaves_of(tree: DraftTree) -> int:
    return len(set(range(len(tree))) - set(tree.parents))


@pytest.mark.parametrize("most", [1, 2, 3])
def test_k_best_phrases_extend_the_chain(most: int) -> None:
    strategy = new_strategy(LookaheadParameters(), text=FORKS, lengthening_phrases=most)
    drafted = Drafted()
    drafted.add(3, 0.9, 0.9)
    tree, scores, runs = strategy._lengthened(drafted, BUDGET)
    assert leaves_of(tree) == most < len(tree) - 1 == len(scores) == len(runs)


def test_phrases_after_a_chain_are_worth_their_verification() -> None:
    """Phrases after a chain are reached no more often than the chain's end."""
    strategy, least_probability = new_strategy(LookaheadParameters(), text=FORKS), 0.05
    drafted = Drafted()
    drafted.add(3, 0.5, 0.5)
    priced = DraftBudget(max_nodes=32, max_depth=32, least_path_probability=least_probability)
    tree, *_ = strategy._lengthened(drafted, priced)
    assert len(tree) > 1 and min(tree.path_probabilities()) >= least_probability


def phrase_guesses(guesses: DraftTree) -> DraftTree:
    """The guesses without the window, which comes last."""
    return guesses.first(guesses.sources.count(TokenSource.PROMPT_LOOKUP))


@pytest.mark.parametrize("most", [1, 2])
def test_phrases_are_guessed_before_the_window_is_full(most: int) -> None:
    """The reference code uses its pool only once the window is full."""
    lookahead = LookaheadParameters(window=2, ngram=5, candidates=most)
    strategy = new_strategy(lookahead, text=[*FORKS, 3])
    phrases = phrase_guesses(strategy._next_guesses(Drafted()))
    assert strategy._window is not None and len(strategy._window.rows) == 1
    assert leaves_of(phrases) == most and len(phrases) > most


def test_window_ngrams_are_phrases_that_count_less_than_text() -> None:
    """Each n-gram has two tokens, with which the reference crashes."""
    strategy = new_strategy(LookaheadParameters(window=1, ngram=2, candidates=1), text=[5, 6, 9])
    guesses, phrases = strategy._next_guesses(Drafted()), strategy._phrases
    assert guesses.token_ids == (5,) and phrases is not None
    strategy._learn_ngrams([77])
    assert phrases.propose([5], DraftBudget(max_nodes=2, max_depth=1)).token_ids == (6, 77)


def test_no_guesses_without_draft_by_phrases() -> None:
    # No guesses are checked in the draft model's forward.
    strategy = new_strategy(LookaheadParameters(), text=[*FORKS, 3], draft_by_phrases=False)
    assert len(strategy._next_guesses(Drafted())) == 0


def counting_logits(prefix: Sequence[int]) -> Tensor:
    """The logits of a model that counts to 11 again and again."""
    return 10.0 * one_hot(torch.tensor((prefix[-1] + 1) % VOCABULARY), VOCABULARY).float()


def test_phrases_extend_a_chain_whose_stop_token_was_cut_off() -> None:
    """The chain used to count as ended by a token that had been cut off."""
    model: Any = ScriptedModel(counting_logits, VOCABULARY, context_length=400, stop_token_ids=(4,))
    strategy = new_strategy(LookaheadParameters(window=3, candidates=3), model, [*range(12)] * 10)
    budget = DraftBudget(max_nodes=6, max_depth=32)
    assert strategy.chain_depth(budget) == 4
    assert run(strategy.propose(budget)).token_ids == (0, 1, 2, 3, 4)
    assert strategy.end is DraftEnd.DEPTH  # of the chain; the last token is a phrase's


@pytest.fixture
def shared() -> StrategyFactory:
    return StrategyFactory(PhraseStore(PhraseSettings(phrases_url="memory://")))


def shared_strategy(shared: StrategyFactory, request: SessionRequest, **options: Any) -> Strategy:
    model = model_of(**options)
    return shared.strategy(
        request, [(model, model.acquire())], prefill_chunk_tokens=64, is_alone=lambda: False
    )


def test_long_output_keeps_the_own_text(shared: StrategyFactory) -> None:
    """The table had been sized for 512 tokens and lost two thirds of a long text."""
    strategy = shared_strategy(shared, request_of(TEXT), context_length=4096)
    phrases = strategy.session.phrases
    assert phrases is not None
    text = [1000 + (number * 7919) % 3500 for number in range(3500)]  # each token once
    phrases.extend((), text)
    one = DraftBudget(max_nodes=1, max_depth=1)
    positions = range(8, len(text), 50)
    correct = [phrases.propose(text[at - 8 : at], one).token_ids == (text[at],) for at in positions]
    assert sum(correct) > 0.95 * len(correct)


def test_strategies_have_separate_calibrations(shared: StrategyFactory) -> None:
    """Scores, runs and acceptance rates of `cascade` have another meaning."""
    calibrations = {
        name: shared_strategy(shared, request_of(TEXT, name)).session.experience.calibration
        for name in ("ouroboros", "cascade")
    }
    assert calibrations["ouroboros"] is not calibrations["cascade"]
    again = shared_strategy(shared, request_of(TEXT, "cascade")).session.experience.calibration
    assert again is calibrations["cascade"]


def test_requests_share_what_guesses_gain(shared: StrategyFactory) -> None:
    """Requests with a different window do not share it, since their cost differs."""
    narrow_window = OuroborosParameters(lookahead=LookaheadParameters(window=2, candidates=2))
    default, without_history, narrower = (
        shared_strategy(shared, request_of(TEXT, ouroboros=parameters)).session.experience.guessing
        for parameters in (OuroborosParameters(), OuroborosParameters(history=False), narrow_window)
    )
    assert default is without_history and narrower is not default
