"""Drafting ahead: where it is done by default, and what it must leave unchanged."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest

from drafter_service.config import DrafterSettings
from drafter_service.servicer import DrafterServicer
from drafter_service.strategies.fused import CHILDREN, Fused
from drafter_service.tree_nodes import BY_REVIEWS, NOT_JUDGED
from drafter_service.weighing import log_odds
from draftloop.request import SamplingParameters
from draftloop.runtime.engine import Engine
from draftloop.runtime.gathering import Gathering
from draftloop.tree import ROOT, DraftBudget, DraftTree
from phrase_store.config import PhraseSettings
from phrase_store.store import PhraseStore
from tests.support.engine_tasks import run_forwards
from tests.support.scripted_drafter import ScriptedModel, finish, session_of
from tests.support.toy_model import FakeModel, TableModel
from tests.unit.test_fused_drafter import (
    PHRASE,
    PROMPT,
    VOCABULARY,
    commit_and_observe,
    draft_ahead,
    new_strategy,
    propose,
)


@pytest.mark.parametrize(
    ("wish", "device", "target", "expected"),
    [
        ("auto", "cuda", "gpu 1", True),
        ("auto", "cuda", "", True),
        ("auto", "cuda", "gpu 0", False),  # both on one GPU: it would delay verification
        ("auto", "cpu", "gpu 1", False),
        ("on", "cpu", "gpu 0", True),
        ("off", "cuda", "gpu 1", False),
    ],
)
def test_drafter_drafts_ahead_on_a_gpu_of_its_own(
    wish: str, device: str, target: str, expected: bool
) -> None:
    host = SimpleNamespace(
        model=SimpleNamespace(device=SimpleNamespace(type=device)),
        info=SimpleNamespace(processor="gpu 0"),
    )
    settings = DrafterSettings(draft_ahead=wish)
    servicer = DrafterServicer(host, PhraseStore(PhraseSettings()), settings)  # type: ignore[arg-type]
    assert servicer._drafts_ahead(target) is expected


@pytest.mark.parametrize("is_awaited", [True, False])
async def test_work_that_nobody_awaits_says_nothing_about_sessions(is_awaited: bool) -> None:
    """It used to count as a request, right after an answer, in the times between requests."""
    gathering = mock.Mock(spec=Gathering, has_absent=False)
    engine = Engine(gathering)
    try:
        task = run_forwards(FakeModel(), 2, "done")
        assert await engine.submit_awaitable(task, is_awaited=is_awaited) == "done"
        engine.call(lambda: None).result()
    finally:
        engine.stop()
    assert gathering.record_request.called is gathering.record_answer.called is is_awaited


def test_offer_beyond_the_stored_predictions_is_neither_dropped_nor_learned_from() -> None:
    """Only the best tokens are stored; the others used to count as impossible."""
    vocabulary, sampling = 4 * CHILDREN, SamplingParameters(temperature=1.0, seed=3)
    budget = DraftBudget(max_nodes=16, max_depth=4)
    for offered in range(vocabulary):
        model = ScriptedModel(TableModel(vocabulary, seed=0).logits, vocabulary)
        strategy = Fused(session_of(model, PROMPT, sampling, strategy="fused"))
        token = finish(strategy.propose(budget), strategy.session).token_ids[0]
        draft_ahead(strategy)
        commit_and_observe(strategy, [token])
        strategy.offer(DraftTree.chain([offered], PHRASE, [0.9]))
        finish(strategy.propose(replace(budget, max_depth=1)), strategy.session)
        candidates = strategy.candidates
        stored = candidates._tree.model_tokens[ROOT].tolist()
        shares = candidates._tree.model_shares[ROOT]
        (node,) = (one for one in candidates.nodes if one["token"] == offered)
        if offered in stored:
            assert node["judged_by"] == BY_REVIEWS
        else:
            most = min(shares[shares > 0].min(), 1 - shares.sum())
            assert node["judged_by"] == NOT_JUDGED
            assert node["share_odds"] == pytest.approx(log_odds(most))


def test_drafting_ahead_does_not_change_the_price_of_forwards() -> None:
    """Its forwards are run at any price, so they gain less than those of drafts."""
    strategy, _ = new_strategy()
    propose(strategy)
    before = strategy.economy.state.tolist()
    draft_ahead(strategy)
    assert strategy.economy.state.tolist() == before


@pytest.mark.parametrize("offered", range(VOCABULARY))
def test_prediction_made_ahead_reviews_an_offer(offered: int) -> None:
    trees = []
    for is_ahead in (True, False):
        strategy, _ = new_strategy()
        strategy.observe = lambda *_: None  # type: ignore[method-assign]
        token = propose(strategy).token_ids[0]
        if is_ahead:
            draft_ahead(strategy)
        else:
            strategy.candidates.clear()  # including what the token's node had
        commit_and_observe(strategy, [token])
        trees.append(propose(strategy, DraftTree.chain([offered], PHRASE, [0.5]), depth=1))
    assert trees[0] == trees[1]
