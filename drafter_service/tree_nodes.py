"""Compiled loops over the nodes of a draft tree that grows; `candidates` is the way in.

A draft of sixteen nodes looks at some hundred candidates. One by one in Python they take longer
than the forwards of a small draft model that rank them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from drafter_service.weighing import Weighing
from draftloop.calibration import Calibration
from draftloop.runtime.compiling import compiled
from draftloop.runtime.records import Floats, Whole
from draftloop.runtime.slot_rows import PARENT, TOKEN
from draftloop.tree import ROOT, TokenSource

SOURCE = int(TokenSource.DRAFT_MODEL)
UNRUN = -2  # the row of a node that was not run
MISSING = -3  # no such node
# Which part of `Learned` learns, once the target has spoken, whether a node was right: none of an
# offered one that the draft model has not seen.
BY_NOBODY, BY_CALIBRATION, BY_REVIEWS = 0, 1, 2
# `estimate`: probability that a node is accepted given that its parent was; `reach`: the product of
# those along its path. `judged_by`: one of the three above; the calibration knows the node by its
# `cell`, the reviews by log-odds of what was `heard` of the draft model and `told` by the offer,
# and by whether it `is_first` for the draft model. `row`: its place among the slot's pending rows
# once it was run, in this tree or one before, else UNRUN; it is `grown` once its children stand in
# this one. The last record, that of index ROOT, is the root's.
NODE = np.dtype(
    [
        *((name, np.int64) for name in ("token", "parent", "depth", "source")),
        *((name, np.int64) for name in ("judged_by", "cell", "is_first", "row", "grown")),
        *((name, np.float64) for name in ("estimate", "reach", "heard", "told")),
    ],
    align=True,
)
# How a tree is to grow: `children` of a node and nodes run `together`, at most; of all nodes the
# `most` with a reach of at `least` so much are wanted, down to `max_depth`. It ends where the next
# forward is not worth `tokens_per_second` and a node's price, or where the last one brought in no
# more than `delta`, if that is not negative.
PLAN = np.dtype(
    [
        *((name, np.int64) for name in ("children", "together", "most", "max_depth")),
        *((name, np.float64) for name in ("least", "node_price", "tokens_per_second", "delta")),
    ],
    align=True,
)
# How far it is: all nodes, those that the draft model proposed, the first that the last forward
# added, pending `rows`, nodes that were chosen last and `ends` that grow next, the `expected`
# accepted tokens, whether anything was offered, and why nothing grows any more.
STATE = np.dtype(
    [
        *((name, np.int64) for name in ("nodes", "drafted", "first_new", "rows", "chosen", "ends")),
        ("expected", np.float64),
        *((name, np.int64) for name in ("has_offer", "why")),
    ],
    align=True,
)

# An array of one of these: numba reads fields as attributes, numpy's types do not.
NodeRecords = Any


class Tree(NamedTuple):
    """A tree under construction; every array is as long as it may ever need.

    `plan` and `state` have one record each. `rows` are the slot's pending ones. After a row's node
    the draft model's best tokens were `said_tokens` with `said_shares` of all, both [rows and the
    root's, children]. `chosen` and `ends` are nodes, `stops` tokens in order.
    """

    nodes: NodeRecords
    plan: NodeRecords
    state: NodeRecords
    rows: Whole
    said_tokens: Whole
    said_shares: Floats
    chosen: Whole
    ends: Whole
    stops: Whole


class Learned(NamedTuple):
    """What became of nodes: of the draft model's own, and of those that it was offered."""

    calibration: Calibration
    reviews: Weighing


@compiled
def clear(tree: Tree, is_run: bool) -> None:
    """No nodes; with `is_run` the root's row and what is known behind it stay."""
    state, root = tree.state[0], tree.nodes[ROOT]
    state.nodes = state.drafted = state.first_new = 0
    state.chosen = state.ends = state.has_offer = 0
    root.token, root.parent, root.depth, root.source = 0, ROOT, 0, 0
    root.judged_by, root.cell, root.grown = BY_NOBODY, 0, 0
    root.estimate, root.reach = 1.0, 1.0
    if not is_run:
        root.row, state.rows = UNRUN, 0


@compiled
def child(tree: Tree, parent: int, token: int) -> int:
    """The node for a token under a parent."""
    for node in range(parent + 1, tree.state[0].nodes):
        if tree.nodes[node].parent == parent and tree.nodes[node].token == token:
            return node
    return MISSING


@compiled
def follow(tree: Tree, token_ids: Whole, rows: Whole) -> bool:
    """The rows of the nodes that tokens lead along from the root; False where one was not run."""
    at = ROOT
    if tree.nodes[ROOT].row == UNRUN:
        return False
    for place in range(len(token_ids)):
        at = child(tree, at, token_ids[place])
        if at == MISSING or tree.nodes[at].row == UNRUN:
            return False
        rows[place] = tree.nodes[at].row
    return True


@compiled
def add(
    tree: Tree, parent: int, token: int, source: int, estimate: float, reach: float,
    judged_by: int, cell: int,
) -> int:  # fmt: skip
    """A new node; its parent has no such child yet."""
    state, node = tree.state[0], tree.nodes[tree.state[0].nodes]
    node.token, node.parent, node.source = token, parent, source
    node.depth = tree.nodes[parent].depth + 1
    node.judged_by, node.cell, node.grown = judged_by, cell, 0
    node.estimate, node.reach = estimate, reach
    node.row = UNRUN
    above = tree.nodes[parent].row
    if above != UNRUN:
        for row in range(state.rows):  # run when another node was the root
            if tree.rows[TOKEN, row] == token and tree.rows[PARENT, row] == above:
                node.row = row
    state.nodes += 1
    return int(state.nodes - 1)


@compiled
def offer(tree: Tree, whole: Whole, estimates: Floats, max_depth: int) -> None:
    """Adds nodes that another source proposes, down to a depth.

    whole: [3, nodes], tokens, parents among them or ROOT, and sources.
    """
    tree.state[0].has_offer = len(estimates) > 0
    places = np.empty(len(estimates), np.int64)
    for node in range(len(estimates)):
        above = whole[1, node]
        parent = ROOT if above == ROOT else places[above]
        places[node] = MISSING
        if parent != MISSING and tree.nodes[parent].depth < max_depth:
            reach = tree.nodes[parent].reach * estimates[node]
            places[node] = add(
                tree, parent, whole[0, node], whole[2, node], estimates[node], reach, BY_NOBODY, 0
            )


@compiled
def greatest(values: Floats, count: int, most: int, least: float, out: Whole) -> int:
    """Writes to `out` the places of the `most` greatest of the first `count` values, best first.

    Only of those that are at least `least`; ties by order. Returns how many there are.
    """
    found = 0
    for place in range(count):
        value = values[place]
        if not value >= least or (found == most and (not most or value <= values[out[most - 1]])):
            continue
        spot = min(found, most - 1)
        while spot > 0 and value > values[out[spot - 1]]:
            out[spot] = out[spot - 1]
            spot -= 1
        out[spot] = place
        found = min(found + 1, most)
    return found


@compiled
def part_of_others(best: float, others: float) -> float:
    """What is left of the estimates of the best node's siblings, for all to sum to at most 1.

    Each is right about as often as it says, so that scaling all would make the best too unlikely:
    that siblings exclude each other is seen in the others.
    """
    left = max(0.0, 1.0 - best)
    return left / others if others > left else 1.0


@compiled
def settle(tree: Tree) -> None:
    """Makes siblings' estimates sum to at most 1, and every reach the product of its path."""
    count = tree.state[0].nodes
    totals = np.zeros(count + 1)  # the root's is the last, here and below
    bests = np.full(count + 1, MISSING)
    for node in range(count):
        known = tree.nodes[node]
        totals[known.parent] += known.estimate
        best = bests[known.parent]
        if best == MISSING or known.estimate > tree.nodes[best].estimate:
            bests[known.parent] = node
    for node in range(count):
        known = tree.nodes[node]
        best = bests[known.parent]
        if node != best:  # the best one's estimate stays as it was
            most = tree.nodes[best].estimate
            known.estimate *= part_of_others(most, totals[known.parent] - most)
        known.reach = tree.nodes[known.parent].reach * known.estimate


@compiled
def copy_out(tree: Tree, whole: Whole, estimates: Floats) -> None:
    """The chosen nodes: [3, chosen] tokens, parents among them and sources; estimates [chosen]."""
    for place in range(tree.state[0].chosen):
        known = tree.nodes[tree.chosen[place]]
        whole[0, place], whole[1, place], whole[2, place] = known.token, ROOT, known.source
        for earlier in range(place):
            if tree.chosen[earlier] == known.parent:
                whole[1, place] = earlier
        estimates[place] = min(1.0, known.estimate)
