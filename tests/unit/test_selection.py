"""Which part of a draft is worth its verification, against all parts that there are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftloop.model_info import CostPoint
from draftloop.tree import ROOT, DraftTree, TokenSource
from orchestrator.costs import VerifyCost
from orchestrator.selection import Offer, select

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
def test_no_other_part_of_a_draft_is_worth_more(
    tree: DraftTree, cost: VerifyCost, rate: float
) -> None:
    chosen = select(tree, cost, rate, most=32)
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


def test_no_more_nodes_are_chosen_than_may_be() -> None:
    tree = DraftTree.chain([1, 2, 3, 4], MODEL, [1.0] * 4)
    chosen = select(tree, LINE, 0.0, most=2)
    assert chosen.tree == DraftTree.chain([1, 2], MODEL, [1.0] * 2) and chosen.cut
    assert chosen.offer == Offer(tokens=2, nodes=2)  # by what is left of the draft
