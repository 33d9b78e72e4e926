"""A whole draft in one compiled call: forwards of the draft model and what lies between them.

A forward of a small draft model takes a tenth of a millisecond, and Python around it twice that:
the caches are full of the target's weights, so every line is fetched from memory anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from drafter_service.economy import observed
from drafter_service.native import call, nanoseconds
from drafter_service.tree_children import offered, remember, take, take_known
from drafter_service.tree_ends import all_known, deepest, next_ends
from drafter_service.tree_nodes import UNRUN, Floats, Learned, Tree, Whole
from draftloop.runtime.cpu_choice_kernel import CALL_FIELDS as CHOICE
from draftloop.runtime.cpu_stack_kernel import CALL_FIELDS as STACK
from draftloop.runtime.cpu_stack_kernel import SEGMENT_FIELDS as SEGMENT
from draftloop.runtime.prepared import Records
from draftloop.tree import ROOT
from phrase_store.counts import compiled

TOKEN, POSITION, CHOSEN = 0, 1, 2  # of `Records.numbers`
LENGTH, ROOM, FORWARDS = 0, 1, 2  # of `Context.place`
# Where the kernels' records have what changes from forward to forward.
STACK_ROWS, STACK_CHOSEN = STACK.index("rows"), STACK.index("chosen_count")
CHOICE_ROWS, CHOICE_NOISE = CHOICE.index("rows"), len(CHOICE)
SEGMENT_ROWS = SEGMENT.index("rows")
SEGMENT_FROM, SEGMENT_TO = SEGMENT.index("stored_from"), SEGMENT.index("stored_to")


class Context(NamedTuple):
    """The slot that a draft is run in.

    tail: committed tokens that were not run yet. place: rows that hold committed tokens, most
    pending rows, and forwards that were run.
    """

    tail: Whole
    place: Whole


@compiled
def grow(tree: Tree, learned: Learned, economy: Floats, records: Records, context: Context) -> None:
    """Forwards until none pays, or until there is no room for the next one."""
    state = tree.state[0]
    context.place[FORWARDS] = 0
    while state.ends:
        if all_known(tree):
            take_known(tree, learned)
        elif not fits(tree, records, context):
            return
        else:
            began, first = nanoseconds(), tree.nodes[ROOT].row == UNRUN
            chosen = run(tree, records, context)
            gain = read(tree, learned, records, chosen)
            observed(economy, (nanoseconds() - began) / 1e9, gain, first)
        next_ends(tree, economy)


@compiled
def fits(tree: Tree, records: Records, context: Context) -> bool:
    """Whether the arrays have room for the next forward."""
    state = tree.state[0]
    rows = len(context.tail) + state.ends
    return bool(
        deepest(tree) < len(records.noise)
        and rows <= records.numbers.shape[1]
        and state.rows + state.ends <= context.place[ROOM]
        and state.nodes + state.most < len(tree.nodes)
        and context.place[FORWARDS] < len(records.times)
    )


@compiled
def run(tree: Tree, records: Records, context: Context) -> int:
    """One forward over the ends, and over the tail before the first; how many rows were chosen."""
    state, numbers, segment = tree.state[0], records.numbers, records.segment
    length, rows = context.place[LENGTH], 0
    stored = length + state.rows
    chosen = 0
    if tree.nodes[ROOT].row == UNRUN:
        for token in context.tail:
            numbers[TOKEN, rows], numbers[POSITION, rows] = token, length + rows
            rows += 1
        length += rows
        tree.nodes[ROOT].row, context.place[LENGTH] = ROOT, length
        numbers[CHOSEN, 0], chosen = rows - 1, 1
    tail = rows
    for end in tree.ends[chosen : state.ends]:
        known, row = tree.nodes[end], state.rows
        tree.rows[0, row], tree.rows[1, row] = known.token, tree.nodes[known.parent].row
        known.row = row
        numbers[TOKEN, rows], numbers[POSITION, rows] = known.token, length - 1 + known.depth
        numbers[CHOSEN, chosen] = rows
        state.rows, rows, chosen = row + 1, rows + 1, chosen + 1
    segment[SEGMENT_ROWS] = rows
    segment[SEGMENT_FROM], segment[SEGMENT_TO] = stored, stored + rows
    show(tree, records, length, tail, chosen)
    records.stack[STACK_ROWS], records.stack[STACK_CHOSEN] = rows, chosen
    records.choice[CHOICE_ROWS] = chosen
    for place in range(chosen):
        depth = tree.nodes[tree.ends[place]].depth
        records.choice[CHOICE_NOISE + place] = records.noise[depth]
    began = nanoseconds()
    call(records.entries[0], records.stack.ctypes.data)
    number = context.place[FORWARDS]
    records.times[number, 0], records.times[number, 1] = rows, rows - tail
    records.times[number, 2] = nanoseconds() - began
    context.place[FORWARDS] = number + 1
    call(records.entries[1], records.choice.ctypes.data)
    return int(chosen)


@compiled
def show(tree: Tree, records: Records, length: int, tail: int, chosen: int) -> None:
    """What every row sees: the text before it, and of the draft its ancestors and itself."""
    stored, lanes = records.segment[SEGMENT_TO], records.entries[2]
    width = (stored + lanes - 1) // lanes * lanes
    records.window[1] = width
    bias = records.bias
    for row in range(tail):
        start = row * width
        seen = start + length - tail + row + 1
        bias[start:seen] = 0.0
        bias[seen : start + width] = -np.inf
    start = tail * width
    for end in tree.ends[1 if tail else 0 : tree.state[0].ends]:
        bias[start : start + length] = 0.0
        bias[start + length : start + width] = -np.inf
        node = end
        while node != ROOT:
            bias[start + length + tree.nodes[node].row] = 0.0
            node = tree.nodes[node].parent
        start += width


@compiled
def read(tree: Tree, learned: Learned, records: Records, chosen: int) -> float:
    """Takes in what the kernel chose after the ends; the gain of `take`."""
    count = (records.said.size // records.scores.shape[0] - 1) // 2
    tokens, shares = np.empty((chosen, count), np.int64), np.zeros((chosen, count))
    bests, masses = np.empty(chosen), np.empty(chosen)
    for place in range(chosen):
        said = records.said[place * (2 * count + 1) : (place + 1) * (2 * count + 1)]
        bests[place], masses[place] = said[count], said[2 * count]
        for rank in range(count):
            tokens[place, rank] = int(said[rank])
            if said[count + rank] > -np.inf:
                shares[place, rank] = np.exp(said[count + rank] - said[count]) / said[2 * count]
    remember(tree, tokens, shares)
    state = tree.state[0]
    nodes, places = np.empty(state.nodes, np.int64), np.empty(state.nodes, np.int64)
    found = offered(tree, nodes, places) if state.has_offer else 0
    parts = np.zeros(found)
    for known in range(found):
        place = places[known]
        score = records.scores[place, tree.nodes[nodes[known]].token]
        if score > -np.inf:
            parts[known] = np.exp(float(score) - bests[place]) / masses[place]
    return take(tree, learned, tokens, shares, nodes, parts, found)
