"""The drafter's part of `fused`: review, merge and growth on scripted models."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafter_service import tree_nodes
from drafter_service.session import DrafterSession
from drafter_service.strategies.fused import TOGETHER, Fused
from drafter_service.tree_nodes import UNRUN
from draftloop.calibration import LATER, RUN_EDGES, SHAPE, bucket, cell_of, count
from draftloop.request import SamplingParameters
from draftloop.tree import EMPTY_TREE, ROOT, DraftBudget, DraftEnd, DraftTree, TokenSource, Verdict
from tests.support.scripted_drafter import ScriptedModel, finish, session_of
from tests.support.toy_model import TableModel

PROMPT = [1, 0, 2]
VOCABULARY = 5
ROW = SHAPE[1] * SHAPE[2]  # cells of a calibration for one source
PHRASE = TokenSource.PHRASE
HIT = Verdict((0,), (0, 0), 0)


def new_strategy(
    seed: int = 0, temperature: float = 0.0, **options: int
) -> tuple[Fused, DrafterSession]:
    table = TableModel(vocabulary_size=VOCABULARY, seed=seed)
    model = ScriptedModel(table.logits, VOCABULARY, **options)  # type: ignore[arg-type]
    sampling = SamplingParameters(temperature=temperature, seed=7)
    session = session_of(model, PROMPT, sampling, strategy="fused")
    return Fused(session), session


def propose(
    strategy: Fused, offer: DraftTree = EMPTY_TREE, nodes: int = 16, depth: int = 8, **prices: float
) -> DraftTree:
    strategy.offer(offer)
    budget = DraftBudget(max_nodes=nodes, max_depth=depth, **prices)
    tree = finish(strategy.propose(budget), strategy.session)
    tree.validate(vocabulary_size=VOCABULARY, max_nodes=nodes)
    return tree


@st.composite
def offer_trees(draw: st.DrawFn) -> DraftTree:
    """Trees with ties, zeros and ones, and siblings whose estimates sum to more than 1."""
    tokens: list[int] = []
    parents: list[int] = []
    for node in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(-1, node - 1))
        taken = {t for t, p in zip(tokens, parents, strict=True) if p == parent}
        free = [token for token in range(VOCABULARY) if token not in taken]
        if free:
            tokens.append(draw(st.sampled_from(free)))
            parents.append(parent)
    # A skipped node leaves later parents one too high; they are corrected.
    parents = [min(parent, index - 1) for index, parent in enumerate(parents)]
    estimates = tuple(draw(st.sampled_from((0.0, 0.25, 0.5, 1.0))) for _ in tokens)
    tree = DraftTree(tuple(tokens), tuple(parents), estimates, (PHRASE,) * len(tokens))
    return tree if len(tree.children()) == len(tree) else EMPTY_TREE


@settings(max_examples=150, deadline=None)
@given(
    offer=offer_trees(), seed=st.integers(0, 50), temperature=st.sampled_from((0.0, 1.0)),
    nodes=st.integers(1, 16), depth=st.integers(1, 6),
    least=st.sampled_from((0.0, 0.1, 0.25, 1.0)),
)  # fmt: skip
def test_merged_tree_is_valid_and_sibling_estimates_sum_to_one(
    offer: DraftTree, seed: int, temperature: float, nodes: int, depth: int, least: float
) -> None:
    strategy, _ = new_strategy(seed, temperature)
    tree = propose(strategy, offer, nodes, depth, least_path_probability=least)
    totals: dict[int, float] = {}
    for parent, estimate in zip(tree.parents, tree.estimates, strict=True):
        totals[parent] = totals.get(parent, 0.0) + estimate
    assert all(total <= 1 + 1e-9 for total in totals.values())
    assert max(tree.depths(), default=0) <= depth
    assert all(probability >= least - 1e-9 for probability in tree.path_probabilities())


def test_one_forward_reviews_the_whole_offer_and_adds_siblings() -> None:
    strategy, session = new_strategy()
    offer = DraftTree.chain([3, 3, 3, 3], PHRASE, [0.9] * 4)
    tree = propose(strategy, offer, tokens_per_second=1e9)
    rows = session.model.rows_of_forwards  # type: ignore[attr-defined]
    assert rows == [len(PROMPT) + 4]
    assert strategy.end is DraftEnd.DRAFT_COST
    reviewed = {ROOT, *(node for node, source in enumerate(tree.sources) if source is PHRASE)}
    parents_of_drafted = {
        parent for parent, source in zip(tree.parents, tree.sources, strict=True)
        if source is TokenSource.DRAFT_MODEL
    }  # fmt: skip
    assert parents_of_drafted <= reviewed and len(parents_of_drafted) >= 2


def test_same_token_from_two_sources_is_one_node() -> None:
    strategy, session = new_strategy()
    logits = session.model.logits(PROMPT)  # type: ignore[attr-defined]
    likeliest = int(logits.argmax())
    tree = propose(strategy, DraftTree.chain([likeliest], PHRASE, [0.9]), depth=1)
    assert sorted(tree.token_ids) == sorted(set(tree.token_ids))
    assert tree.sources[tree.token_ids.index(likeliest)] is PHRASE


def test_review_weights_adapt_to_reliable_phrases() -> None:
    """Phrases that the draft model finds unlikely are right here every time."""
    strategy, session = new_strategy()
    unlikely = int(session.model.logits(PROMPT).argmin())  # type: ignore[attr-defined]
    offer = DraftTree.chain([unlikely], PHRASE, [0.5])
    first = propose(strategy, offer)
    for _ in range(40):
        propose(strategy, offer)
        strategy.observe([unlikely, 0], HIT)
    later = propose(strategy, offer)
    estimates = {tree: tree.estimates[tree.children()[ROOT, unlikely]] for tree in (first, later)}
    assert estimates[first] < 0.5 < 0.8 < estimates[later]


def test_first_guess_is_calibrated_separately_from_later_ones() -> None:
    """That the best token is always right says nothing about a second best of equal score."""
    strategy, session = new_strategy()
    tree = propose(strategy, depth=1, nodes=5)
    for _ in range(40):
        strategy.observe([tree.token_ids[0], 0], HIT)
        propose(strategy, depth=1, nodes=5)
    calibration, source = session.experience.calibration, TokenSource.DRAFT_MODEL
    first, later = (
        sum(calibration.hits[row * ROW : (row + 1) * ROW]) for row in (source, source + LATER)
    )
    assert first > 50 and later == 0


def test_later_guess_is_estimated_by_the_record_of_later_guesses() -> None:
    strategy, session = new_strategy()
    before = propose(strategy, depth=1, nodes=5)
    calibration = session.experience.calibration
    for hundredth in range(1, 100):
        for _ in range(5):
            count(calibration, cell_of(TokenSource.DRAFT_MODEL, hundredth / 100, 1, False), False)
    after = propose(strategy, depth=1, nodes=5)
    assert after.estimates[0] == before.estimates[0]
    estimates = {
        tree: dict(zip(tree.token_ids, tree.estimates, strict=True)) for tree in (before, after)
    }
    later = after.token_ids[1:]
    assert later and all(
        estimates[after][token] < 0.8 * estimates[before][token] for token in later
    )


def test_best_sibling_keeps_its_estimate_when_siblings_exceed_one() -> None:
    strategy, _ = new_strategy()
    siblings = DraftTree(
        (1, 2, 3, 4, 0), (ROOT,) * 4 + (1,), (0.3, 0.8, 0.8, 0.1, 0.9), (PHRASE,) * 5
    )
    strategy.candidates.offer(siblings, 8)
    tree_nodes.normalize(strategy.candidates._tree)
    estimates = strategy.candidates.nodes["estimate"]
    assert estimates == pytest.approx([0.05, 0.8, 0.8 / 6, 0.1 / 6, 0.9])
    assert strategy.candidates.nodes["reach"][4] == pytest.approx(0.8 * 0.9)


def test_reach_probability_follows_changed_estimates() -> None:
    strategy, _ = new_strategy()
    strategy.candidates.offer(DraftTree.chain([1, 2], PHRASE, [0.5, 0.5]), 8)
    for estimate in (0.8, 0.3):
        strategy.candidates.nodes["estimate"][:] = estimate
        tree_nodes.normalize(strategy.candidates._tree)
        assert strategy.candidates.nodes["reach"] == pytest.approx([estimate, estimate**2])


def test_proposed_nodes_are_calibrated_at_their_depth() -> None:
    strategy, _ = new_strategy()
    propose(strategy, nodes=24, depth=4)
    cells = strategy.candidates.nodes[["depth", "cell"]].tolist()
    assert {depth for depth, _ in cells} == {1, 2, 3, 4}
    assert all(cell % SHAPE[2] == bucket(RUN_EDGES, depth) for depth, cell in cells)


def test_unverified_candidates_are_calibrated_too() -> None:
    strategy, session = new_strategy()
    tree = propose(strategy, depth=1, nodes=5)
    cells = session.experience.calibration.trials
    strategy.observe([tree.token_ids[-1], 0], HIT)
    # Each is counted at its depth and over all depths; trials fade.
    assert sum(cells) == pytest.approx(2 * len(tree), abs=0.1)
    before = list(cells)
    strategy.observe([0], None)  # nothing was verified
    assert list(cells) == before


def test_open_ends_grow_in_shared_forwards_while_they_pay() -> None:
    strategy, session = new_strategy()
    tree = propose(strategy, nodes=24, depth=4)
    rows = session.model.rows_of_forwards[1:]  # type: ignore[attr-defined]
    assert max(rows) > 1
    assert len(tree) == 24 and strategy.end is DraftEnd.NODES
    costly, cheap = new_strategy()
    assert len(propose(costly, nodes=24, depth=4, tokens_per_second=1e9)) < 24
    assert len(cheap.model.rows_of_forwards) == 1  # type: ignore[attr-defined]


def test_likeliest_ends_grow_first() -> None:
    strategy, _ = new_strategy()
    candidates = strategy.candidates
    candidates.plan(
        DraftBudget(max_nodes=8, max_depth=8), together=1, most=8, max_depth=4, least=0.0
    )
    candidates.offer(DraftTree((1, 2), (ROOT, ROOT), (0.2, 0.7), (PHRASE,) * 2), 4)
    candidates._tree.nodes[ROOT]["row"] = ROOT
    candidates.next_ends(strategy.economy)
    assert candidates.ends == [1]


def test_gain_of_a_forward_is_relative_to_reaching_its_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The vocabulary has five tokens: together they are certain everywhere."""
    strategy, _ = new_strategy()
    gains: list[float] = []
    monkeypatch.setattr(strategy.economy, "observe", lambda _, gain, first: gains.append(gain))
    propose(strategy, nodes=100, depth=4)
    assert len(gains) > 3 and gains == pytest.approx([1.0] * len(gains), abs=1e-3)


def test_selection_prefers_earlier_nodes_among_equals() -> None:
    """Parents come before children; otherwise a child could be selected without its parent."""
    values, places = np.array([0.5, 1.0, 1.0, 1.0]), np.zeros(4, np.int64)
    assert tree_nodes.top_indices(values, 4, 2, 0.0, places) == 2
    assert places[:2].tolist() == [1, 2]


def test_number_of_ends_per_forward_is_bounded() -> None:
    strategy, session = new_strategy()
    propose(strategy, nodes=100, depth=4)
    rows = session.model.rows_of_forwards[1:]  # type: ignore[attr-defined]
    assert max(rows) == TOGETHER


def test_small_cache_gives_the_same_draft() -> None:
    strategy, _ = new_strategy(max_draft_nodes=10)
    wide, _ = new_strategy()
    assert propose(strategy, nodes=10, depth=8) == propose(wide, nodes=10, depth=8)


def test_offer_is_not_kept_for_a_later_round() -> None:
    strategy, _ = new_strategy()
    propose(strategy, DraftTree.chain([3, 3], PHRASE, [0.9, 0.9]))
    assert PHRASE not in propose(strategy).sources


def test_offer_is_cut_at_the_depth_of_the_budget() -> None:
    strategy, _ = new_strategy()
    tree = propose(strategy, DraftTree.chain([3] * 6, PHRASE, [1.0] * 6), depth=2)
    assert max(tree.depths()) <= 2


@pytest.mark.parametrize("value", [float("-inf"), 50.0])
def test_probabilities_of_zero_and_one_give_valid_estimates(value: float) -> None:
    """Filtered-out tokens have probability 0, and a certain one has 1."""
    row = torch.full((VOCABULARY,), value)
    row[2] = 100.0
    model = ScriptedModel(lambda prefix: row, VOCABULARY)
    session = session_of(model, PROMPT, SamplingParameters(temperature=0.0, seed=1))
    tree = propose(Fused(session), DraftTree.chain([1, 2], PHRASE, [0.0, 1.0]))
    assert not any(math.isnan(estimate) for estimate in tree.estimates)
    assert 2 in tree.token_ids


def draft_ahead(strategy: Fused, forwards: int = 1000) -> None:
    """Drafts ahead with at most `forwards` forward passes."""
    before = len(rows_of_forwards(strategy))
    finish(
        strategy.draft_ahead(lambda: len(rows_of_forwards(strategy)) - before < forwards),
        strategy.session,
    )


def tokens_run_from_root(strategy: Fused) -> list[int]:
    """The first tokens after which the draft model was run."""
    nodes = strategy.candidates.nodes
    tokens: list[int] = nodes["token"][(nodes["parent"] == ROOT) & (nodes["row"] != UNRUN)].tolist()
    return tokens


def rows_of_forwards(strategy: Fused) -> list[int]:
    rows: list[int] = strategy.session.model.rows_of_forwards  # type: ignore[attr-defined]
    return rows


def commit_and_observe(strategy: Fused, tokens: list[int]) -> None:
    session = strategy.session
    session.commit(tokens, len(session.committed) + len(tokens))
    strategy.observe(tokens, Verdict((), tuple(tokens[-1:]), tokens[-1]))


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 50), temperature=st.sampled_from((0.0, 1.0)), forwards=st.integers(0, 6),
    rounds=st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4), max_size=4),
    nodes=st.integers(1, 16),
)  # fmt: skip
def test_draft_does_not_depend_on_drafting_ahead(
    seed: int, temperature: float, forwards: int, rounds: list[list[int]], nodes: int
) -> None:
    """Only the number of forwards is lower, whether the text stays in the tree or leaves it."""
    ahead, _ = new_strategy(seed, temperature)
    on_demand, _ = new_strategy(seed, temperature)
    for strategy in (ahead, on_demand):  # what they learn depends on the nodes that they ran
        strategy.observe = lambda *_: None  # type: ignore[method-assign]
    for tokens in rounds:
        drafted = propose(ahead, nodes=nodes, depth=4)
        assert drafted == propose(on_demand, nodes=nodes, depth=4)
        draft_ahead(ahead, forwards)
        # One path stays in the tree, so that it is not always left at once.
        first = drafted.token_ids[0]
        for strategy in (ahead, on_demand):
            commit_and_observe(strategy, [first, *tokens])
    assert propose(ahead, nodes=nodes, depth=4) == propose(on_demand, nodes=nodes, depth=4)


def test_draft_prepared_ahead_needs_no_forward() -> None:
    strategy, session = new_strategy()
    propose(strategy, nodes=4, depth=2, tokens_per_second=1e9)
    draft_ahead(strategy)
    commit_and_observe(strategy, [tokens_run_from_root(strategy)[-1]])
    before = len(rows_of_forwards(strategy))
    next_draft = propose(strategy, nodes=4, depth=2, tokens_per_second=1e9)
    assert len(rows_of_forwards(strategy)) == before and len(next_draft) > 0
    assert session.slot.length == len(session.committed)


def test_offer_is_merged_with_the_draft_made_ahead() -> None:
    """The draft model's estimate of it is known if it is among its best tokens."""
    strategy, session = new_strategy()
    propose(strategy)
    draft_ahead(strategy)
    commit_and_observe(strategy, tokens_run_from_root(strategy)[:1])
    before = len(rows_of_forwards(strategy))
    tree = propose(strategy, DraftTree.chain([3, 3], PHRASE, [0.9, 0.9]), tokens_per_second=1e9)
    assert PHRASE in tree.sources and len(rows_of_forwards(strategy)) == before
    assert session.slot.pending <= session.model.options.max_draft_nodes


def test_unfinished_forward_leaves_no_state() -> None:
    """The session's stream may be lost, or a forward pass fail."""
    (strategy, session), (plain, _) = new_strategy(), new_strategy()
    for each in (strategy, plain):
        each.observe = lambda *_: None  # type: ignore[method-assign]
        propose(each, nodes=4, depth=2)
    task = strategy.draft_ahead(lambda: True)
    next(task)
    candidates = strategy.candidates  # nothing is known yet after the last node
    path = candidates.path_tokens(int(candidates.nodes["row"].argmax()))
    task.close()
    for each in (strategy, plain):
        commit_and_observe(each, path)
    assert propose(strategy, nodes=4, depth=2) == propose(plain, nodes=4, depth=2)
    assert session.slot.length == len(session.committed)


def test_drafting_ahead_stays_within_the_slot() -> None:
    strategy, session = new_strategy(max_draft_nodes=10)
    propose(strategy, nodes=6, depth=4)
    draft_ahead(strategy)
    assert session.slot.pending <= 10
    short, end = new_strategy(context_length=len(PROMPT) + 3)
    propose(short, depth=2)
    draft_ahead(short)
    assert short.candidates.nodes["depth"].max() <= 3
    assert end.slot.room() >= 0
