"""How much of a draft is worth verifying: the nodes that bring in most at the present pace."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass

from draftloop.tree import EMPTY_TREE, ROOT, Draft, DraftEnd, DraftTree
from orchestrator.costs import VerifyCost


@dataclass(frozen=True, slots=True)
class Offer:
    """What a draft promises and costs: expected accepted tokens, and number of nodes."""

    tokens: float = 0.0
    nodes: int = 0


NO_OFFER = Offer()


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of a draft, its expected accepted tokens, and whether nodes were left out (`cut`)."""

    tree: DraftTree
    promised: float
    cut: bool

    @property
    def offer(self) -> Offer:
        """What this part promises and costs."""
        return Offer(self.promised, len(self.tree))


EMPTY_SELECTION = Selection(EMPTY_TREE, 0.0, cut=False)


def select(tree: DraftTree, cost: VerifyCost, rate: float, max_nodes: int) -> Selection:
    """The n likeliest nodes, where n <= `max_nodes` maximizes E(n) - rate x T(n); n may be 0.

    E(n): 1 plus the sum of the n greatest path probabilities. T(n): time of verifying n nodes, in
    nanoseconds, which need not be convex. `rate`: tokens per nanosecond; 0 selects as many nodes as
    allowed. The n likeliest nodes always form a tree: no child is likelier than its parent, and
    ties are broken by order, parents first.
    """
    if not len(tree):
        return EMPTY_SELECTION
    probabilities = tree.path_probabilities()
    order = sorted(range(len(tree)), key=probabilities.__getitem__, reverse=True)[:max_nodes]
    times = cost.times(len(order))
    expected, best = 0.0, -rate * times[0]
    promised, count = 0.0, 0
    for size, node in enumerate(order, start=1):
        expected += probabilities[node]
        worth = expected - rate * times[size]
        if worth > best or not rate:
            best, promised, count = worth, expected, size
    if count == len(tree):
        return Selection(tree, promised, cut=False)
    return Selection(subtree(tree, sorted(order[:count])), promised, cut=True)


def cut(draft: Draft, selected: Selection) -> Draft:
    """The draft, cut to the selected part."""
    if not selected.cut:
        return draft if len(draft.tree) else dataclasses.replace(draft, end=DraftEnd.NONE)
    return dataclasses.replace(
        draft,
        tree=selected.tree,
        proposed=Counter(draft.tree.sources) | Counter(draft.proposed),
        end=DraftEnd.VERIFY_COST if len(selected.tree) else DraftEnd.NONE,
    )


def subtree(tree: DraftTree, nodes: list[int]) -> DraftTree:
    """The subtree of `nodes`, which are in ascending order and include every node's parent."""
    count = len(nodes)
    if nodes and nodes[-1] == count - 1:  # a tree that was grown best first keeps a prefix
        return tree.first(count)
    places = {node: index for index, node in enumerate(nodes)} | {ROOT: ROOT}
    return DraftTree(
        token_ids=tuple(tree.token_ids[node] for node in nodes),
        parents=tuple(places[tree.parents[node]] for node in nodes),
        estimates=tuple(tree.estimates[node] for node in nodes),
        sources=tuple(tree.sources[node] for node in nodes),
    )


def restrict_to_vocabulary(tree: DraftTree, vocabulary_size: int) -> DraftTree:
    """The tree without tokens outside a vocabulary of this size, and without their descendants."""
    if max(tree.token_ids, default=0) < vocabulary_size:
        return tree
    known = {ROOT}
    for node, (token, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
        if token < vocabulary_size and parent in known:
            known.add(node)
    return subtree(tree, sorted(known - {ROOT}))
