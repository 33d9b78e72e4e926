"""`fused` with several draft models in one drafter: which model drafts, and consistent state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafter_service.strategies.fused import Fused, _gain
from drafter_service.ways import Way
from drafter_service.weighing import Weighing
from draftloop.metrics import REGISTRY
from draftloop.request import SamplingParameters
from draftloop.tree import EMPTY_TREE, ROOT, DraftBudget, DraftTree, TokenSource, Verdict
from tests.support.scripted_drafter import ScriptedModel, finish, session_of
from tests.support.toy_model import TableModel

PROMPT = [1, 0, 2]
VOCABULARY = 5
PHRASE = TokenSource.PHRASE


def new_strategy(*seeds: int) -> Fused:
    """A greedy strategy over models with these seeds, larger ones first."""
    session = None
    sampling = SamplingParameters(temperature=0.0, seed=7)
    for seed in reversed(seeds):
        model = ScriptedModel(TableModel(vocabulary_size=VOCABULARY, seed=seed).logits, VOCABULARY)
        session = session_of(model, PROMPT, sampling, session, strategy="fused")
    assert session is not None
    return Fused(session)


def propose(strategy: Fused, way: Way, offer: DraftTree = EMPTY_TREE, **limits: int) -> DraftTree:
    for session in strategy.session.levels():
        session.experience.ways.next = lambda usual: way  # type: ignore[method-assign]
    strategy.offer(offer)
    budget = DraftBudget(**{"max_nodes": 24, "max_depth": 6, **limits})
    tree = finish(strategy.propose(budget), strategy.session)
    tree.validate(vocabulary_size=VOCABULARY, max_nodes=budget.max_nodes)
    return tree


def forwards_of(strategy: Fused) -> list[int]:
    """The number of forward passes of each model."""
    return [len(level.model.rows_of_forwards) for level in strategy.session.levels()]  # type: ignore[attr-defined]


def levels_of(strategy: Fused | None) -> list[Fused]:
    """The part of each model, larger ones first."""
    return [] if strategy is None else [strategy, *levels_of(strategy._smaller)]


def likeliest_token(level: Fused) -> int:
    """The model's likeliest token after the committed ones."""
    session = level.session
    return int(session.model.logits(session.committed).argmax())  # type: ignore[attr-defined]


def commit_and_observe(strategy: Fused, tokens: list[int]) -> None:
    session = strategy.session
    session.commit(tokens, len(session.committed) + len(tokens))
    strategy.observe(tokens, Verdict((), tuple(tokens[-1:]), tokens[-1]))


def test_review_replaces_forwards_of_the_larger_model() -> None:
    single, both = new_strategy(3), new_strategy(3, 3)
    trees = propose(single, Way.LARGER, max_nodes=6), propose(both, Way.BOTH, max_nodes=6)
    assert 2 < max(trees[0].depths()) <= max(trees[1].depths())
    larger, smaller = forwards_of(both)
    assert larger < smaller == forwards_of(single)[0]


def test_drafting_with_one_model_does_not_run_the_other() -> None:
    for way, forwards in ((Way.LARGER, (True, False)), (Way.SMALLER, (False, True))):
        strategy = new_strategy(3, 4)
        assert propose(strategy, way) and strategy.proposed_nodes
        assert [count > 0 for count in forwards_of(strategy)] == list(forwards)


@pytest.mark.parametrize(("times", "models"), [(3, [True, False]), (10, [True, True])])
def test_smaller_model_drafts_when_the_larger_is_much_slower(
    times: int, models: list[bool]
) -> None:
    strategy = new_strategy(3, 4)
    strategy.session.model.forward_seconds = times * ScriptedModel.forward_seconds  # type: ignore[misc]
    next_round = Fused(strategy.session)
    finish(next_round.propose(DraftBudget(max_nodes=24, max_depth=6)), strategy.session)
    assert [count > 0 for count in forwards_of(next_round)] == models


def test_drafts_are_counted_by_models() -> None:
    def draft_count(way: Way) -> float:
        labels = {"models": way.name.lower()}
        return REGISTRY.get_sample_value("draftloop_fused_drafts_total", labels) or 0.0

    before = {way: draft_count(way) for way in Way}
    propose(new_strategy(3, 4), Way.SMALLER)
    propose(new_strategy(3), Way.LARGER)  # the only model there is
    after = {way: draft_count(way) - before[way] for way in Way}
    assert after == {Way.BOTH: 0, Way.LARGER: 0, Way.SMALLER: 1}


def test_offer_is_merged_whichever_model_drafts() -> None:
    offer = DraftTree.chain([3, 3], PHRASE, [0.9, 0.9])
    for way in Way:
        strategy = new_strategy(3, 4)
        assert PHRASE in propose(strategy, way, offer).sources
        assert PHRASE not in propose(strategy, way).sources  # it is not kept for a later round


@settings(max_examples=100, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 50), min_size=2, max_size=3),
    rounds=st.lists(
        st.tuples(
            st.sampled_from(Way),
            st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4),
            st.booleans(),
        ),
        min_size=1, max_size=8,
    ),
)  # fmt: skip
def test_each_model_predicts_from_the_text_after_rounds_of_the_other(
    seeds: list[int], rounds: list[tuple[Way, list[int], bool]]
) -> None:
    """After rounds without a model, that model's slot and tree lag behind the text."""
    strategy = new_strategy(*seeds)
    for way, tokens, ahead in rounds:
        tree = propose(strategy, way)
        levels = levels_of(strategy)
        drafted = {Way.BOTH: levels, Way.LARGER: levels[:1], Way.SMALLER: levels[-1:]}[way]
        for level in drafted:
            predicted = level.candidates._tree.model_tokens[ROOT]
            assert predicted[0] == likeliest_token(level)
        if ahead:
            finish(strategy.draft_ahead(lambda: True), strategy.session)
        committed = [tree.token_ids[0], *tokens] if ahead else tokens
        commit_and_observe(strategy, committed)
        for each in strategy.session.levels():
            assert each.slot.length <= len(each.committed) == len(strategy.session.committed)


def has_learned(reviews: Weighing) -> bool:
    """Whether the weights have changed."""
    return not np.array_equal(reviews.weights, Weighing().weights)


def test_only_models_that_drafted_learn() -> None:
    for way, learns in ((Way.BOTH, (True, True)), (Way.LARGER, (True, False)),
                        (Way.SMALLER, (False, True))):  # fmt: skip
        strategy = new_strategy(3, 4)
        tree = propose(strategy, way)
        commit_and_observe(strategy, [tree.token_ids[0]])
        experiences = [level.experience for level in strategy.session.levels()]
        learned = [
            any(experience.calibration.trials) or has_learned(experience.reviews)
            for experience in experiences
        ]
        assert learned == list(learns)


@pytest.mark.parametrize(("way", "idle"), [(Way.LARGER, 1), (Way.SMALLER, 0)])
def test_idle_model_learns_nothing_from_a_draft(way: Way, idle: int) -> None:
    """The idle model's own last draft was judged before, and belongs to an older text."""
    strategy = new_strategy(3, 4)
    commit_and_observe(strategy, [propose(strategy, Way.BOTH).token_ids[0]])
    experience = [*strategy.session.levels()][idle].experience
    calibrations = experience.calibration, experience.ways.further
    before, weights = (
        [list(calibration.trials) for calibration in calibrations],
        experience.reviews.weights.tolist(),
    )
    assert any(map(any, before)) or has_learned(experience.reviews)
    commit_and_observe(strategy, [propose(strategy, way).token_ids[0]])
    assert [list(calibration.trials) for calibration in calibrations] == before
    assert experience.reviews.weights.tolist() == weights


def test_ways_are_judged_by_gain_over_the_offer_and_by_cost() -> None:
    strategy, observed = new_strategy(3, 4), []
    strategy.session.experience.ways.observe = lambda way, worth: observed.append((way, worth))  # type: ignore[method-assign]
    certain = DraftTree.chain([3, 3], PHRASE, [1.0, 1.0])
    propose(strategy, Way.SMALLER, certain, max_nodes=2, max_depth=2)
    ((way, gain),) = observed
    assert way is Way.SMALLER and gain <= 0  # two tokens were there before


def test_gain_of_a_draft_is_the_value_of_its_nodes_above_their_price() -> None:
    tree = DraftTree((1, 2, 3), (ROOT, 0, ROOT), (0.5, 0.5, 0.4), (PHRASE,) * 3)
    priced = DraftBudget(max_nodes=8, max_depth=8, least_path_probability=0.3)
    assert _gain(tree, priced) == pytest.approx(0.2 + 0.1)
    assert _gain(EMPTY_TREE, priced) == 0


def test_larger_models_review_decides_the_estimates() -> None:
    """The larger model is as confident as of its own drafts: nothing is known of either yet."""
    single, both = new_strategy(3), new_strategy(3, 4)
    own = propose(single, Way.LARGER, max_depth=1)
    reviewed = propose(both, Way.BOTH, max_depth=1)
    assert dict(zip(reviewed.token_ids, reviewed.estimates, strict=True)) == pytest.approx(
        dict(zip(own.token_ids, own.estimates, strict=True))
    )
