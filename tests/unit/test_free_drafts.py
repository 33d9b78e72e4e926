"""Drafts from tokens alone say why they are no larger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from draftloop.tree import EMPTY_TREE, ROOT, DraftBudget, DraftEnd, DraftTree, TokenSource, Verdict
from orchestrator.drafting import Drafting


class Always:
    def drafts(self) -> bool:
        return True


class Fixed:
    def __init__(self, tree: DraftTree) -> None:
        self._tree = tree

    def propose(self, committed: Sequence[int], budget: DraftBudget) -> DraftTree:
        return self._tree

    def observe(self, committed: Sequence[int], new: int, draft: DraftTree, said: Verdict) -> None:
        raise AssertionError("nothing was judged")


CHAIN = DraftTree((5, 6), (ROOT, 0), (0.5, 0.5), (TokenSource.PROMPT_LOOKUP,) * 2)


@pytest.mark.parametrize(
    ("tree", "most_nodes", "most_depth", "end"),
    [
        (EMPTY_TREE, 4, 4, DraftEnd.NONE),
        (CHAIN, 2, 4, DraftEnd.NODES),
        (CHAIN, 4, 2, DraftEnd.DEPTH),
        (CHAIN, 4, 4, DraftEnd.TEXT),
    ],
)
def test_a_free_draft_says_why_it_ended(
    tree: DraftTree, most_nodes: int, most_depth: int, end: DraftEnd
) -> None:
    drafting = Drafting(Fixed(tree), None, Always())  # type: ignore[arg-type]
    budget = DraftBudget(max_nodes=most_nodes, max_depth=most_depth)
    assert asyncio.run(drafting.propose([1], None, budget)).end is end
