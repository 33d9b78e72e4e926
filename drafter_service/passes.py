"""A whole draft in one compiled call: forwards of the draft model and the work between them.

A forward of a small draft model takes a tenth of a millisecond. The Python code around it would
take twice that, because the processor's caches are full of the target's weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from drafter_service import economy
from drafter_service.tree_children import offered_children, store_outputs, take, take_known
from drafter_service.tree_ends import all_known, deepest, next_ends, nodes_to_run
from drafter_service.tree_nodes import UNRUN, Learned, Tree
from draftloop.runtime import layout
from draftloop.runtime.compiling import compiled
from draftloop.runtime.native import nanoseconds
from draftloop.runtime.records import Floats, Records, Whole
from draftloop.runtime.slot_rows import DEPTH, PARENT, TOKEN
from draftloop.tree import ROOT

LENGTH, FORWARDS = 0, 1  # of `Context.place`


class Context(NamedTuple):
    """The slot that a draft is run in.

    tail: committed tokens that were not run yet. place: number of rows that hold committed tokens
    (LENGTH) and of forwards run so far (FORWARDS).
    """

    tail: Whole
    place: Whole


@compiled
def grow(tree: Tree, learned: Learned, costs: Floats, records: Records, context: Context) -> None:
    """Grows the tree by forwards until none pays, or until there is no room for the next one."""
    plan, state = tree.plan[0], tree.state[0]
    while state.ends:
        if state.nodes + plan.most >= len(tree.nodes):
            return  # the arrays are extended before the next call, which continues from here
        if all_known(tree):
            take_known(tree, learned)
        elif not fits(tree, records, context):
            return
        else:
            began, first = nanoseconds(), tree.nodes[ROOT].row == UNRUN
            chosen = run(tree, records, context)
            gain = read(tree, learned, records, chosen)
            economy.observe(costs, (nanoseconds() - began) / 1e9, gain, first)
        next_ends(tree, costs)


@compiled
def fits(tree: Tree, records: Records, context: Context) -> bool:
    """Whether there is room for the rows of the next forward, and for its outputs."""
    state = tree.state[0]
    nodes = nodes_to_run(tree)
    return bool(
        deepest(tree) < len(records.noise)
        and len(context.tail) + nodes <= records.numbers.shape[1]
        and state.rows + nodes <= tree.rows.shape[1]
        and context.place[FORWARDS] < len(records.times)
    )


@compiled
def run(tree: Tree, records: Records, context: Context) -> int:
    """Runs one forward over the ends, in the first one also over the tail.

    Returns the number of rows for which tokens were chosen.
    """
    state, first = tree.state[0], tree.state[0].rows
    length, tail = context.place[LENGTH], context.tail[:0]
    if tree.nodes[ROOT].row == UNRUN:
        tree.nodes[ROOT].row, tail = ROOT, context.tail
        context.place[LENGTH] += len(tail)
    ends = tree.ends[1 if len(tail) else 0 : state.ends]
    for end in ends:
        known, row = tree.nodes[end], state.rows
        tree.rows[TOKEN, row], tree.rows[DEPTH, row] = known.token, known.depth
        tree.rows[PARENT, row] = tree.nodes[known.parent].row
        known.row = row
        state.rows = row + 1
    began = nanoseconds()
    chosen = layout.run(records, tree.rows, first, state.rows, tail, length)
    times = records.times[context.place[FORWARDS]]
    times[0], times[1], times[2] = len(tail) + len(ends), len(ends), nanoseconds() - began
    context.place[FORWARDS] += 1
    depths = np.empty(chosen, np.int64)
    for place in range(chosen):
        depths[place] = tree.nodes[tree.ends[place]].depth
    layout.choose(records, chosen, depths)
    return int(chosen)


@compiled
def read(tree: Tree, learned: Learned, records: Records, chosen: int) -> float:
    """Adds the tokens that the kernel chose after the ends; returns the gain (`take`)."""
    count = (records.results.size // records.scores.shape[0] - 1) // 2
    tokens, shares = np.empty((chosen, count), np.int64), np.zeros((chosen, count))
    bests, masses = np.empty(chosen), np.empty(chosen)
    for place in range(chosen):
        results = records.results[place * (2 * count + 1) : (place + 1) * (2 * count + 1)]
        bests[place], masses[place] = results[count], results[2 * count]
        for rank in range(count):
            tokens[place, rank] = int(results[rank])
            if results[count + rank] > -np.inf:
                shares[place, rank] = (
                    np.exp(results[count + rank] - results[count]) / results[2 * count]
                )
    store_outputs(tree, tokens, shares)
    guesses = offered_children(tree)
    for known in range(len(guesses.nodes)):
        place = guesses.places[known]
        score = records.scores[place, tree.nodes[guesses.nodes[known]].token]
        if score > -np.inf:
            guesses.shares[known] = np.exp(float(score) - bests[place]) / masses[place]
    return take(tree, learned, tokens, shares, guesses)
