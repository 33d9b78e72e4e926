"""Which part of a draft is worth its verification, compared with all parts."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftloop.model_info import CostPoint
from draftloop.tree import EMPTY_TREE, ROOT, Draft, DraftEnd, DraftTree, TokenSource
from orchestrator.costs import VerifyCost
from orchestrator.selection import (
    EMPTY_SELECTION,
    Offer,
    Selection,
    cut,
    restrict_to_vocabulary,
    select,
)

MODEL = TokenSource.DRAFT_MODEL
LINE = VerifyCost((CostPoint(1, 1_000_000), CostPoint(33, 2_000_000)))
STEP = VerifyCost(
    (
        CostPoint(1, 1_000_000),
        CostPoint(4, 1_000_000),
        CostPoint(5, 3_000_000),
        CostPoint(33, 3_000_000),
    )
)


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    count = draw(st.integers(0, 7))
    parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
    estimates = [draw(st.sampled_from((0.0, 0.3, 0.5, 1.0))) for _ in range(count)]
    return DraftTree(tuple(range(count)), tuple(parents), tuple(estimates), (MODEL,) * count)


@settings(max_examples=200, deadline=None)
@given(tree=trees(), cost=st.sampled_from((LINE, STEP)), rate=st.sampled_from((0.0, 1e-6, 4e-6)))
def test_selection_is_optimal_among_all_subtrees(
    tree: DraftTree, cost: VerifyCost, rate: float
) -> None:
    chosen = select(tree, cost, rate, max_nodes=32)
    chosen.tree.validate(vocabulary_size=32, max_nodes=32)
    reached = tree.path_probabilities()
    subsets = itertools.chain.from_iterable(
        itertools.combinations(range(len(tree)), size) for size in range(len(tree) + 1)
    )
    best = max(
        1 + sum(reached[node] for node in nodes) - rate * cost.nanoseconds(len(nodes))
        for nodes in subsets
        if all(tree.parents[node] == ROOT or tree.parents[node] in nodes for node in nodes)
    )
    worth = 1 + chosen.promised - rate * cost.nanoseconds(len(chosen.tree))
    assert worth == pytest.approx(best)
    assert chosen.promised == pytest.approx(sum(chosen.tree.path_probabilities()))
    assert chosen.cut == (len(chosen.tree) < len(tree))


def test_selection_respects_the_node_limit() -> None:
    tree = DraftTree.chain([1, 2, 3, 4], MODEL, [1.0] * 4)
    chosen = select(tree, LINE, 0.0, max_nodes=2)
    assert chosen.tree == DraftTree.chain([1, 2], MODEL, [1.0] * 2) and chosen.cut
    assert chosen.offer == Offer(tokens=2, nodes=2)  # of what is left of the draft


def test_likeliest_nodes_are_selected_at_any_index() -> None:
    """Likely nodes are taken even if as many others come before them."""
    tree = DraftTree((7, 8, 9), (ROOT,) * 3, (0.0, 0.3, 0.5), (MODEL,) * 3)
    chosen = select(tree, LINE, 1e-6, max_nodes=32)
    assert chosen.tree == DraftTree((8, 9), (ROOT,) * 2, (0.3, 0.5), (MODEL,) * 2)


def test_cut_draft_reports_proposed_nodes_and_end() -> None:
    # A draft that is cut to nothing has no end; any other cut is due to the verification cost.
    tree = DraftTree.chain([1, 2, 3], MODEL, [0.9, 0.5, 0.1])
    whole = Draft(tree=tree, committed_length=4, proposed=Counter({MODEL: 9}), end=DraftEnd.DEPTH)
    assert cut(whole, Selection(tree, 1.4, cut=False)) is whole
    for selected, end in ((tree.first(1), DraftEnd.VERIFY_COST), (EMPTY_TREE, DraftEnd.NONE)):
        result = cut(whole, Selection(selected, 0.9, cut=True))
        assert (result.tree, result.proposed, result.end) == (selected, {MODEL: 9}, end)
    uncounted = Draft(tree=tree, committed_length=4)
    assert cut(uncounted, Selection(EMPTY_TREE, 0.0, cut=True)).proposed == {MODEL: 3}
    nothing = Draft(tree=EMPTY_TREE, committed_length=4, end=DraftEnd.DEPTH)
    assert cut(nothing, EMPTY_SELECTION).end is DraftEnd.NONE


def test_tokens_outside_the_vocabulary_are_removed_with_descendants() -> None:
    # Tokens beyond the model's vocabulary are removed with all their descendants.
    tree = DraftTree((3, 9, 4, 5, 8, 6), (ROOT, ROOT, 1, 0, 3, 3), (0.5,) * 6, (MODEL,) * 6)
    assert restrict_to_vocabulary(tree, 10) is tree
    assert restrict_to_vocabulary(tree, 7) == DraftTree(
        (3, 5, 6), (ROOT, 0, 1), (0.5,) * 3, (MODEL,) * 3
    )
    assert restrict_to_vocabulary(tree, 3) == EMPTY_TREE
    assert restrict_to_vocabulary(EMPTY_TREE, 3) is EMPTY_TREE
