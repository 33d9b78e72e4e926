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


def drafting(
    seed: int = 0, temperature: float = 0.0, **options: int
) -> tuple[Fused, DrafterSession]:
    table = TableModel(vocabulary_size=VOCABULARY, seed=seed)
    model = ScriptedModel(table.logits, VOCABULARY, **options)  # type: ignore[arg-type]
    sampling = SamplingParameters(temperature=temperature, seed=7)
    session = session_of(model, PROMPT, sampling, strategy="fused")
    return Fused(session), session


def draft(
    strategy: Fused, offer: DraftTree = EMPTY_TREE, nodes: int = 16, depth: int = 8, **prices: float
) -> DraftTree:
    strategy.offer(offer)
    budget = DraftBudget(max_nodes=nodes, max_depth=depth, **prices)
    tree = finish(strategy.propose(budget), strategy.session)
    tree.validate(vocabulary_size=VOCABULARY, max_nodes=nodes)
    return tree


@st.composite
def offers(draw: st.DrawFn) -> DraftTree:
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
    offer=offers(), seed=st.integers(0, 50), temperature=st.sampled_from((0.0, 1.0)),
    nodes=st.integers(1, 16), depth=st.integers(1, 6),
    least=st.sampled_from((0.0, 0.1, 0.25, 1.0)),
)  # fmt: skip
def test_a_merged_tree_is_a_tree_whose_siblings_share_one(
    offer: DraftTree, seed: int, temperature: float, nodes: int, depth: int, least: float
) -> None:
    strategy, _ = drafting(seed, temperature)
    tree = draft(strategy, offer, nodes, depth, least_path_probability=least)
    totals: dict[int, float] = {}
    for parent, estimate in zip(tree.parents, tree.estimates, strict=True):
        totals[parent] = totals.get(parent, 0.0) + estimate
    assert all(total <= 1 + 1e-9 for total in totals.values())
    assert max(tree.depths(), default=0) <= depth
    assert all(reach >= least - 1e-9 for reach in tree.path_probabilities())


def test_one_forward_reviews_a_whole_offer_and_adds_siblings_everywhere() -> None:
    strategy, session = drafting()
    offer = DraftTree.chain([3, 3, 3, 3], PHRASE, [0.9] * 4)
    tree = draft(strategy, offer, tokens_per_second=1e9)
    rows = session.model.rows_of_forwards  # type: ignore[attr-defined]
    assert rows == [len(PROMPT) + 4]
    assert strategy.end is DraftEnd.DRAFT_COST
    reviewed = {ROOT, *(node for node, source in enumerate(tree.sources) if source is PHRASE)}
    drafted_under = {
        parent for parent, source in zip(tree.parents, tree.sources, strict=True)
        if source is TokenSource.DRAFT_MODEL
    }  # fmt: skip
    assert drafted_under <= reviewed and len(drafted_under) >= 2


def test_the_same_token_from_two_sources_is_one_node() -> None:
    strategy, session = drafting()
    logits = session.model.logits(PROMPT)  # type: ignore[attr-defined]
    likeliest = int(logits.argmax())
    tree = draft(strategy, DraftTree.chain([likeliest], PHRASE, [0.9]), depth=1)
    assert sorted(tree.token_ids) == sorted(set(tree.token_ids))
    assert tree.sources[tree.token_ids.index(likeliest)] is PHRASE


def test_a_review_learns_whom_to_believe() -> None:
    """Phrases that the draft model finds unlikely are right here every time."""
    strategy, session = drafting()
    unlikely = int(session.model.logits(PROMPT).argmin())  # type: ignore[attr-defined]
    offer = DraftTree.chain([unlikely], PHRASE, [0.5])
    first = draft(strategy, offer)
    for _ in range(40):
        draft(strategy, offer)
        strategy.observe([unlikely, 0], HIT)
    later = draft(strategy, offer)
    of = {tree: tree.estimates[tree.children()[ROOT, unlikely]] for tree in (first, later)}
    assert of[first] < 0.5 < 0.8 < of[later]


def test_a_first_guess_is_counted_apart_from_later_ones() -> None:
    """That the best token is always right says nothing about a second best of equal score."""
    strategy, session = drafting()
    tree = draft(strategy, depth=1, nodes=5)
    for _ in range(40):
        strategy.observe([tree.token_ids[0], 0], HIT)
        draft(strategy, depth=1, nodes=5)
    calibration, source = session.experience.calibration, TokenSource.DRAFT_MODEL
    first, later = (
        sum(calibration.hits[row * ROW : (row + 1) * ROW]) for row in (source, source + LATER)
    )
    assert first > 50 and later == 0


def test_a_later_guess_is_believed_as_far_as_later_ones_were_right() -> None:
    strategy, session = drafting()
    before = draft(strategy, depth=1, nodes=5)
    known = session.experience.calibration
    for hundredth in range(1, 100):
        for _ in range(5):
            count(known, cell_of(TokenSource.DRAFT_MODEL, hundredth / 100, 1, False), False)
    after = draft(strategy, depth=1, nodes=5)
    assert after.estimates[0] == before.estimates[0]
    of = {tree: dict(zip(tree.token_ids, tree.estimates, strict=True)) for tree in (before, after)}
    later = after.token_ids[1:]
    assert later and all(of[after][token] < 0.8 * of[before][token] for token in later)


def test_of_siblings_that_promise_too_much_the_best_keeps_its_estimate() -> None:
    strategy, _ = drafting()
    siblings = DraftTree(
        (1, 2, 3, 4, 0), (ROOT,) * 4 + (1,), (0.3, 0.8, 0.8, 0.1, 0.9), (PHRASE,) * 5
    )
    strategy.candidates.offer(siblings, 8)
    tree_nodes.normalize(strategy.candidates._tree)
    settled = strategy.candidates.nodes["estimate"]
    assert settled == pytest.approx([0.05, 0.8, 0.8 / 6, 0.1 / 6, 0.9])
    assert strategy.candidates.nodes["reach"][4] == pytest.approx(0.8 * 0.9)


def test_what_a_node_is_reached_with_follows_its_estimate_up_and_down() -> None:
    strategy, _ = drafting()
    strategy.candidates.offer(DraftTree.chain([1, 2], PHRASE, [0.5, 0.5]), 8)
    for estimate in (0.8, 0.3):
        strategy.candidates.nodes["estimate"][:] = estimate
        tree_nodes.normalize(strategy.candidates._tree)
        assert strategy.candidates.nodes["reach"] == pytest.approx([estimate, estimate**2])


def test_what_the_draft_model_proposes_is_counted_at_its_depth() -> None:
    strategy, _ = drafting()
    draft(strategy, nodes=24, depth=4)
    cells = strategy.candidates.nodes[["depth", "cell"]].tolist()
    assert {depth for depth, _ in cells} == {1, 2, 3, 4}
    assert all(cell % SHAPE[2] == bucket(RUN_EDGES, depth) for depth, cell in cells)


def test_what_was_not_verified_is_judged_too() -> None:
    strategy, session = drafting()
    tree = draft(strategy, depth=1, nodes=5)
    cells = session.experience.calibration.trials
    strategy.observe([tree.token_ids[-1], 0], HIT)
    # Each is counted at its depth and over all depths; trials fade.
    assert sum(cells) == pytest.approx(2 * len(tree), abs=0.1)
    before = list(cells)
    strategy.observe([0], None)  # nothing was verified
    assert list(cells) == before


def test_open_ends_grow_together_while_they_pay() -> None:
    strategy, session = drafting()
    tree = draft(strategy, nodes=24, depth=4)
    rows = session.model.rows_of_forwards[1:]  # type: ignore[attr-defined]
    assert max(rows) > 1
    assert len(tree) == 24 and strategy.end is DraftEnd.NODES
    dear, other = drafting()
    assert len(draft(dear, nodes=24, depth=4, tokens_per_second=1e9)) < 24
    assert len(other.model.rows_of_forwards) == 1  # type: ignore[attr-defined]


def test_the_likeliest_ends_grow_first() -> None:
    strategy, _ = drafting()
    known = strategy.candidates
    known.plan(DraftBudget(max_nodes=8, max_depth=8), together=1, most=8, max_depth=4, least=0.0)
    known.offer(DraftTree((1, 2), (ROOT, ROOT), (0.2, 0.7), (PHRASE,) * 2), 4)
    known._tree.nodes[ROOT]["row"] = ROOT
    known.next_ends(strategy.economy)
    assert known.ends == [1]


def test_a_forward_is_credited_with_what_it_brings_in_where_its_ends_are_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The vocabulary has five tokens: together they are certain everywhere."""
    strategy, _ = drafting()
    gains: list[float] = []
    monkeypatch.setattr(strategy.economy, "observe", lambda _, gain, first: gains.append(gain))
    draft(strategy, nodes=100, depth=4)
    assert len(gains) > 3 and gains == pytest.approx([1.0] * len(gains), abs=1e-3)


def test_of_equals_those_that_came_first_are_selected() -> None:
    """Parents come before children; otherwise a child could be selected without its parent."""
    values, places = np.array([0.5, 1.0, 1.0, 1.0]), np.zeros(4, np.int64)
    assert tree_nodes.top_indices(values, 4, 2, 0.0, places) == 2
    assert places[:2].tolist() == [1, 2]


def test_no_more_ends_grow_in_a_forward_than_may() -> None:
    strategy, session = drafting()
    draft(strategy, nodes=100, depth=4)
    rows = session.model.rows_of_forwards[1:]  # type: ignore[attr-defined]
    assert max(rows) == TOGETHER


def test_keys_and_values_make_room_in_a_small_cache() -> None:
    strategy, _ = drafting(max_draft_nodes=10)
    wide, _ = drafting()
    assert draft(strategy, nodes=10, depth=8) == draft(wide, nodes=10, depth=8)


def test_no_offer_is_kept_for_a_later_round() -> None:
    strategy, _ = drafting()
    draft(strategy, DraftTree.chain([3, 3], PHRASE, [0.9, 0.9]))
    assert PHRASE not in draft(strategy).sources


def test_an_offer_deeper_than_the_budget_is_not_run_beyond_it() -> None:
    strategy, _ = drafting()
    tree = draft(strategy, DraftTree.chain([3] * 6, PHRASE, [1.0] * 6), depth=2)
    assert max(tree.depths()) <= 2


@pytest.mark.parametrize("value", [float("-inf"), 50.0])
def test_scores_of_nothing_and_of_certainty(value: float) -> None:
    """Filtered-out tokens have probability 0, and a certain one has 1."""
    row = torch.full((VOCABULARY,), value)
    row[2] = 100.0
    model = ScriptedModel(lambda prefix: row, VOCABULARY)
    session = session_of(model, PROMPT, SamplingParameters(temperature=0.0, seed=1))
    tree = draft(Fused(session), DraftTree.chain([1, 2], PHRASE, [0.0, 1.0]))
    assert not any(math.isnan(estimate) for estimate in tree.estimates)
    assert 2 in tree.token_ids


def grown_ahead(strategy: Fused, forwards: int = 1000) -> None:
    """Drafts ahead with at most `forwards` forward passes."""
    before = len(rows_of(strategy))
    finish(
        strategy.draft_ahead(lambda: len(rows_of(strategy)) - before < forwards), strategy.session
    )


def exits_of(strategy: Fused) -> list[int]:
    """The first tokens after which the draft model was run."""
    nodes = strategy.candidates.nodes
    tokens: list[int] = nodes["token"][(nodes["parent"] == ROOT) & (nodes["row"] != UNRUN)].tolist()
    return tokens


def rows_of(strategy: Fused) -> list[int]:
    rows: list[int] = strategy.session.model.rows_of_forwards  # type: ignore[attr-defined]
    return rows


def told(strategy: Fused, tokens: list[int]) -> None:
    session = strategy.session
    session.commit(tokens, len(session.committed) + len(tokens))
    strategy.observe(tokens, Verdict((), tuple(tokens[-1:]), tokens[-1]))


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 50), temperature=st.sampled_from((0.0, 1.0)), forwards=st.integers(0, 6),
    rounds=st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4), max_size=4),
    nodes=st.integers(1, 16),
)  # fmt: skip
def test_a_draft_is_the_same_whatever_was_drafted_ahead(
    seed: int, temperature: float, forwards: int, rounds: list[list[int]], nodes: int
) -> None:
    """Only the number of forwards is lower, whether the text stays in the tree or leaves it."""
    ahead, _ = drafting(seed, temperature)
    behind, _ = drafting(seed, temperature)
    for strategy in (ahead, behind):  # what they learn depends on the nodes that they ran
        strategy.observe = lambda *_: None  # type: ignore[method-assign]
    for tokens in rounds:
        drafted = draft(ahead, nodes=nodes, depth=4)
        assert drafted == draft(behind, nodes=nodes, depth=4)
        grown_ahead(ahead, forwards)
        # One path stays in the tree, so that it is not always left at once.
        first = drafted.token_ids[0]
        for strategy in (ahead, behind):
            told(strategy, [first, *tokens])
    assert draft(ahead, nodes=nodes, depth=4) == draft(behind, nodes=nodes, depth=4)


def test_what_was_drafted_ahead_costs_no_forward() -> None:
    strategy, session = drafting()
    draft(strategy, nodes=4, depth=2, tokens_per_second=1e9)
    grown_ahead(strategy)
    told(strategy, [exits_of(strategy)[-1]])
    before = len(rows_of(strategy))
    again = draft(strategy, nodes=4, depth=2, tokens_per_second=1e9)
    assert len(rows_of(strategy)) == before and len(again) > 0
    assert session.slot.length == len(session.committed)


def test_an_offer_is_merged_with_what_was_drafted_ahead() -> None:
    """The draft model's estimate of it is known if it is among its best tokens."""
    strategy, session = drafting()
    draft(strategy)
    grown_ahead(strategy)
    told(strategy, exits_of(strategy)[:1])
    before = len(rows_of(strategy))
    tree = draft(strategy, DraftTree.chain([3, 3], PHRASE, [0.9, 0.9]), tokens_per_second=1e9)
    assert PHRASE in tree.sources and len(rows_of(strategy)) == before
    assert session.slot.pending <= session.model.options.max_draft_nodes


@pytest.mark.parametrize("offered", range(VOCABULARY))
def test_what_was_said_ahead_counts_for_an_offer_like_a_review(offered: int) -> None:
    trees = []
    for is_ahead in (True, False):
        strategy, _ = drafting()
        strategy.observe = lambda *_: None  # type: ignore[method-assign]
        token = draft(strategy).token_ids[0]
        if is_ahead:
            grown_ahead(strategy)
        else:
            strategy.candidates.clear()  # including what the token's node had
        told(strategy, [token])
        trees.append(draft(strategy, DraftTree.chain([offered], PHRASE, [0.5]), depth=1))
    assert trees[0] == trees[1]


def test_nothing_is_left_of_a_forward_that_never_ended() -> None:
    """The session's stream may be lost, or a forward pass fail."""
    (strategy, session), (plain, _) = drafting(), drafting()
    for each in (strategy, plain):
        each.observe = lambda *_: None  # type: ignore[method-assign]
        draft(each, nodes=4, depth=2)
    task = strategy.draft_ahead(lambda: True)
    next(task)
    known = strategy.candidates  # nothing is known yet after the last node
    path = known.path_tokens(int(known.nodes["row"].argmax()))
    task.close()
    for each in (strategy, plain):
        told(each, path)
    assert draft(strategy, nodes=4, depth=2) == draft(plain, nodes=4, depth=2)
    assert session.slot.length == len(session.committed)


def test_drafting_ahead_keeps_to_the_slots_room() -> None:
    strategy, session = drafting(max_draft_nodes=10)
    draft(strategy, nodes=6, depth=4)
    grown_ahead(strategy)
    assert session.slot.pending <= 10
    short, end = drafting(context_length=len(PROMPT) + 3)
    draft(short, depth=2)
    grown_ahead(short)
    assert short.candidates.nodes["depth"].max() <= 3
    assert end.slot.room() >= 0
