"""Compiled loops over the nodes of a growing draft tree; used through `candidates`.

A draft of sixteen nodes considers about a hundred candidates. In plain Python that would take
longer than the forwards of a small draft model that rank them.
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
# Which part of `Learned` learns from the verdict whether a node was right; none for an offered node
# that the draft model has not scored.
NOT_JUDGED, BY_CALIBRATION, BY_REVIEWS = 0, 1, 2
# A node. `estimate`: probability that it is accepted given that its parent was. `reach`: its path
# probability, the product of the estimates along its path. `judged_by`: one of the three above.
# Input of the calibration: `cell`. Inputs of the reviews: log-odds of the draft model's share
# (`share_odds`) and of the offer's estimate (`offer_odds`), and whether the node is the draft
# model's first choice (`is_first`). `row`: index among the slot's pending rows if it was run, in
# this tree or an earlier one, else UNRUN. `grown`: its children are in this tree. The last record,
# at index ROOT, is the root's.
NODE = np.dtype(
    [
        *((name, np.int64) for name in ("token", "parent", "depth", "source")),
        *((name, np.int64) for name in ("judged_by", "cell", "is_first", "row", "grown")),
        *((name, np.float64) for name in ("estimate", "reach", "share_odds", "offer_odds")),
    ],
    align=True,
)
# Limits of growth. Maxima: `children` per node, nodes run `together` in a forward, `most` nodes in
# the draft, `max_depth`. `least`: minimum reach of a node in the draft. Growth ends where the next
# forward is not worth its time (`tokens_per_second`) and `node_price`; or, if `delta` is not
# negative, where the last forward added no more than `delta` expected tokens.
PLAN = np.dtype(
    [
        *((name, np.int64) for name in ("children", "together", "most", "max_depth")),
        *((name, np.float64) for name in ("least", "node_price", "tokens_per_second", "delta")),
    ],
    align=True,
)
# State of growth. Numbers of all `nodes`, of those `drafted` by the draft model, of the slot's
# pending `rows`, of nodes `chosen` last, and of `ends` that grow next; index of the first node that
# the last forward added; `expected` accepted tokens; whether anything was offered; `why` growth
# ended.
STATE = np.dtype(
    [
        *((name, np.int64) for name in ("nodes", "drafted", "first_new", "rows", "chosen", "ends")),
        ("expected", np.float64),
        *((name, np.int64) for name in ("has_offer", "why")),
    ],
    align=True,
)

# An array of such records: numba reads fields as attributes, numpy's types do not.
NodeRecords = Any


class Tree(NamedTuple):
    """A tree under construction, in arrays with room to grow (`Candidates` extends them).

    `plan` and `state` have one record each. `rows`: the slot's pending rows. `model_tokens` and
    `model_shares`: [pending rows + 1, children], the draft model's best tokens after each row's
    node and their shares of its scores; the last row is the root's. `chosen` and `ends` hold node
    indices, `stops` the sorted stop tokens.
    """

    nodes: NodeRecords
    plan: NodeRecords
    state: NodeRecords
    rows: Whole
    model_tokens: Whole
    model_shares: Floats
    chosen: Whole
    ends: Whole
    stops: Whole


class Learned(NamedTuple):
    """What is learned from verdicts: on the draft model's own nodes, and on offered ones."""

    calibration: Calibration
    reviews: Weighing


@compiled
def clear(tree: Tree, is_run: bool) -> None:
    """Removes all nodes; with `is_run`, the root's row and the slot's pending rows are kept."""
    state, root = tree.state[0], tree.nodes[ROOT]
    state.nodes = state.drafted = state.first_new = 0
    state.chosen = state.ends = state.has_offer = 0
    root.token, root.parent, root.depth, root.source = 0, ROOT, 0, 0
    root.judged_by, root.cell, root.grown = NOT_JUDGED, 0, 0
    root.estimate, root.reach = 1.0, 1.0
    if not is_run:
        root.row, state.rows = UNRUN, 0


@compiled
def child(tree: Tree, parent: int, token: int) -> int:
    """The node for a token under a parent, or MISSING."""
    for node in range(parent + 1, tree.state[0].nodes):
        if tree.nodes[node].parent == parent and tree.nodes[node].token == token:
            return node
    return MISSING


@compiled
def follow(tree: Tree, token_ids: Whole, rows: Whole) -> bool:
    """Writes the rows of the nodes that tokens lead to from the root; False if any was not run."""
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
    """Adds a node, which its parent must not have yet; returns its index."""
    state, node = tree.state[0], tree.nodes[tree.state[0].nodes]
    node.token, node.parent, node.source = token, parent, source
    node.depth = tree.nodes[parent].depth + 1
    node.judged_by, node.cell, node.grown = judged_by, cell, 0
    node.estimate, node.reach = estimate, reach
    node.row = UNRUN
    above = tree.nodes[parent].row
    if above != UNRUN:
        for row in range(state.rows):  # it may have been run before the root moved
            if tree.rows[TOKEN, row] == token and tree.rows[PARENT, row] == above:
                node.row = row
    state.nodes += 1
    return int(state.nodes - 1)


@compiled
def offer(tree: Tree, whole: Whole, estimates: Floats, max_depth: int) -> None:
    """Adds nodes that another source proposes, down to `max_depth`.

    whole: [3, nodes]: tokens; parents, as indices of these nodes or ROOT; sources.
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
                tree, parent, whole[0, node], whole[2, node], estimates[node], reach, NOT_JUDGED, 0
            )


@compiled
def top_indices(values: Floats, count: int, most: int, least: float, out: Whole) -> int:
    """Writes the indices of the `most` greatest of the first `count` values to `out`, best first.

    Ignores values below `least`; of equal values the earlier comes first. Returns their number.
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
def sibling_factor(best: float, others: float) -> float:
    """Factor for the estimates of the best node's siblings, so that all sum to at most 1.

    The best node keeps its estimate: calibrated estimates are right on their own, and scaling all
    would make the best one too low. So only the others account for siblings excluding each other.
    """
    left = max(0.0, 1.0 - best)
    return left / others if others > left else 1.0


@compiled
def normalize(tree: Tree) -> None:
    """Makes siblings' estimates sum to at most 1, and every reach the product of its path."""
    count = tree.state[0].nodes
    totals = np.zeros(count + 1)  # the root's is the last entry, here and below
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
            known.estimate *= sibling_factor(most, totals[known.parent] - most)
        known.reach = tree.nodes[known.parent].reach * known.estimate


@compiled
def copy_out(tree: Tree, whole: Whole, estimates: Floats) -> None:
    """Writes out the chosen nodes.

    whole: [3, chosen]: tokens; parents, as indices of these nodes or ROOT; sources. estimates:
    [chosen].
    """
    for place in range(tree.state[0].chosen):
        known = tree.nodes[tree.chosen[place]]
        whole[0, place], whole[1, place], whole[2, place] = known.token, ROOT, known.source
        for earlier in range(place):
            if tree.chosen[earlier] == known.parent:
                whole[1, place] = earlier
        estimates[place] = min(1.0, known.estimate)
