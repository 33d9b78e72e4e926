"""How much of a draft is worth verifying: the nodes that bring in most at the present pace."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass

from draftloop.tree import EMPTY_TREE, ROOT, Draft, DraftEnd, DraftTree
from orchestrator.costs import VerifyCost


@dataclass(frozen=True, slots=True)
class Offer:
    """What a draft brings and costs: accepted tokens that it promises, and its nodes."""

    tokens: float = 0.0
    nodes: int = 0


NO_OFFER = Offer()


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of a draft, what it promises, and whether nodes were left out (`cut`)."""

    tree: DraftTree
    promised: float
    cut: bool

    @property
    def offer(self) -> Offer:
        """What this part brings and costs."""
        return Offer(self.promised, len(self.tree))


NOTHING = Selection(EMPTY_TREE, 0.0, cut=False)


def select(tree: DraftTree, cost: VerifyCost, rate: float, most: int) -> Selection:
    """The likeliest nodes, at most `most`, so many that E(n) - rate x T(n) is greatest.

    E: 1 and the sum of path probabilities; T: the verify curve, which need not be convex; rate in
    tokens per nanosecond, 0 for all of them. Any number of the likeliest nodes is a tree: no child
    is likelier than its parent, and ties go by order, parents first.
    """
    if not len(tree):
        return NOTHING
    reached = tree.path_probabilities()
    order = sorted(range(len(tree)), key=reached.__getitem__, reverse=True)[:most]
    times = cost.times(len(order))
    expected, best = 0.0, -rate * times[0]
    promised, count = 0.0, 0
    for taken, node in enumerate(order, start=1):
        expected += reached[node]
        worth = expected - rate * times[taken]
        if worth > best or not rate:
            best, promised, count = worth, expected, taken
    if count == len(tree):
        return Selection(tree, promised, cut=False)
    return Selection(part(tree, sorted(order[:count])), promised, cut=True)


def cut(draft: Draft, chosen: Selection) -> Draft:
    """The draft cut to what was chosen of it."""
    if not chosen.cut:
        return draft if len(draft.tree) else dataclasses.replace(draft, end=DraftEnd.NONE)
    return dataclasses.replace(
        draft,
        tree=chosen.tree,
        proposed=draft.proposed or Counter(draft.tree.sources),
        end=DraftEnd.VERIFY_COST if len(chosen.tree) else DraftEnd.NONE,
    )


def part(tree: DraftTree, nodes: list[int]) -> DraftTree:
    """The tree of these nodes, in ascending order; with a node they hold its parent."""
    count = len(nodes)
    if nodes and nodes[-1] == count - 1:  # what was grown best first is cut behind its best
        return tree.first(count)
    places = {node: place for place, node in enumerate(nodes)} | {ROOT: ROOT}
    return DraftTree(
        token_ids=tuple(tree.token_ids[node] for node in nodes),
        parents=tuple(places[tree.parents[node]] for node in nodes),
        estimates=tuple(tree.estimates[node] for node in nodes),
        sources=tuple(tree.sources[node] for node in nodes),
    )


def within(tree: DraftTree, vocabulary_size: int) -> DraftTree:
    """The tree without tokens that a model of so many has not, and without what follows them."""
    if max(tree.token_ids, default=0) < vocabulary_size:
        return tree
    known = {ROOT}
    for node, (token, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
        if token < vocabulary_size and parent in known:
            known.add(node)
    return part(tree, sorted(known - {ROOT}))
