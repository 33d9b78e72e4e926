"""Merged trees stay valid: parents first, siblings distinct, whatever is offered twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from draftloop.tree import ROOT, DraftTree, TokenSource
from draftloop.tree_builder import TreeBuilder

CHAINS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=8)


def test_same_token_under_the_same_parent_is_one_node() -> None:
    builder = TreeBuilder()
    first = builder.add(ROOT, 7, 0.25, TokenSource.PHRASE)
    again = builder.add(ROOT, 7, 0.5, TokenSource.LOOKAHEAD)
    sibling = builder.add(first, 7, 0.1, TokenSource.LOOKAHEAD)
    assert first == again != sibling
    assert builder.build() == DraftTree(
        (7, 7), (ROOT, 0), (0.5, 0.1), (TokenSource.PHRASE, TokenSource.LOOKAHEAD)
    )


def test_better_of_two_estimates_is_kept() -> None:
    builder = TreeBuilder()
    builder.add(ROOT, 7, 0.5, TokenSource.PHRASE)
    builder.add(ROOT, 7, 0.25, TokenSource.LOOKAHEAD)
    assert builder.build().estimates == (0.5,)


@given(CHAINS, CHAINS)
def test_grafted_tree_contains_every_path(trunk: list[list[int]], grafts: list[list[int]]) -> None:
    trunk_builder, graft_builder = TreeBuilder(), TreeBuilder()
    for chain in trunk:
        trunk_builder.add_chain(ROOT, chain, 0.5, TokenSource.PHRASE)
    for chain in grafts:
        graft_builder.add_chain(ROOT, chain, 0.5, TokenSource.PHRASE)
    end = trunk_builder.add_chain(ROOT, [9], 0.5, TokenSource.DRAFT_MODEL)
    trunk_builder.graft(end, graft_builder.build())
    tree = trunk_builder.build()
    tree.validate(vocabulary_size=10, max_nodes=1000)
    paths = {tuple(tree.token_ids[index] for index in tree.path(node)) for node in range(len(tree))}
    for chain in trunk:
        assert tuple(chain) in paths
    for chain in grafts:
        assert (9, *chain) in paths
