"""Draft trees: their shape, and the message of every rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftloop.errors import InvalidInput
from draftloop.tree import EMPTY_TREE, ROOT, DraftTree, TokenSource

TREE = DraftTree(
    token_ids=(5, 6, 5, 7),
    parents=(ROOT, ROOT, 0, 2),
    estimates=(0.5,) * 4,
    sources=(TokenSource.PHRASE,) * 4,
)


def test_depths_paths_and_children() -> None:
    assert TREE.depths() == [1, 1, 2, 3]
    assert TREE.path(3) == [0, 2, 3]
    assert TREE.path(ROOT) == []
    assert TREE.children()[0, 5] == 2


def test_chain_places_each_node_under_the_previous_one() -> None:
    assert DraftTree.chain([4, 4, 4], TokenSource.PHRASE).parents == (ROOT, 0, 1)
    assert len(DraftTree.chain([], TokenSource.PHRASE)) == 0


def test_tree_within_the_limits_is_valid() -> None:
    TREE.validate(vocabulary_size=8, max_nodes=4)
    DraftTree().validate(vocabulary_size=8, max_nodes=0)
    replace(TREE, estimates=(0.0, 1.0, 0.5, 1.0)).validate(vocabulary_size=8, max_nodes=4)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (replace(TREE, token_ids=(5, 6, 8, 7)), "draft.token_ids[2]: must be from 0 to 7; got 8"),
        (replace(TREE, token_ids=(-1, 6, 5, 7)), "draft.token_ids[0]: must be from 0 to 7; got -1"),
        (
            replace(TREE, parents=(ROOT, 1, 0, 2)),
            "draft.parents[1]: must be from -1 to 0: parents come before children; got 1",
        ),
        (
            replace(TREE, parents=(ROOT, -2, 0, 2)),
            "draft.parents[1]: must be from -1 to 0: parents come before children; got -2",
        ),
        (
            replace(TREE, token_ids=(5, 5, 5, 7)),
            "draft.token_ids: siblings must differ; got [5, 5, 5, 7]",
        ),
        (
            replace(TREE, estimates=(0.5,)),
            "draft.estimates: must have one entry for each of 4 nodes; got '1 entries'",
        ),
        (
            replace(TREE, estimates=(0.5, float("nan"), 0.5, 0.5)),
            "draft.estimates[1]: must be from 0 to 1; got nan",
        ),
        (
            replace(TREE, estimates=(0.5, 0.5, 0.5, float("inf"))),
            "draft.estimates[3]: must be from 0 to 1; got inf",
        ),
        (
            replace(TREE, estimates=(-0.25, 0.5, 0.5, 0.5)),
            "draft.estimates[0]: must be from 0 to 1; got -0.25",
        ),
        (
            DraftTree.chain([1] * 5, TokenSource.PHRASE),
            "draft.token_ids: must have at most 4 nodes; got 5",
        ),
    ],
)
def test_broken_rules_are_named(tree: DraftTree, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        tree.validate(vocabulary_size=8, max_nodes=4)
    assert str(caught.value) == message


def test_first_nodes_of_a_tree_are_a_tree() -> None:
    tree = DraftTree((5, 6, 7), (ROOT, 0, 0), (0.5, 0.25, 0.125), (TokenSource.PHRASE,) * 3)
    assert tree.first(2) == DraftTree((5, 6), (ROOT, 0), (0.5, 0.25), (TokenSource.PHRASE,) * 2)
    assert tree.first(0) == EMPTY_TREE
    assert tree.first(4) == tree
