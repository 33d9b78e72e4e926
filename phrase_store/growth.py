"""Compiled loops that look up continuations, blend them and grow a draft, best first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftloop.calibration import Calibration
from draftloop.phrase import MAX_CONTEXT
from draftloop.runtime.calibrating import correct
from draftloop.runtime.compiling import compiled
from draftloop.tree import TokenSource
from phrase_store.counts import MAX_CONTINUATIONS
from phrase_store.lanes import equal_lanes, lowest_bit
from phrase_store.stops import Stops, is_among
from phrase_store.table import (
    SEED,
    TOKEN,
    Floats,
    Integers,
    Table,
    Totals,
    Words,
    bucket_of,
    decayed,
    fingerprint_of,
    mixed,
)

MAX_BLENDED = 16  # tokens considered after one node
MIN_COUNT = 0.05  # smaller counts are leftovers of decay
# Escape weights of contexts of 1, 2, ... tokens: how much each doubts what it saw once. What
# followed one equal token is right one time in seven, what followed six or more, three in four.
ESCAPES = np.array([6.0, 1.5, 0.8, 0.55, 0.43, 0.33, 0.3, 0.3])
MIN_MASS = 0.01  # with less probability mass left, shorter contexts are not looked up
OWN_SOURCE, SHARED_SOURCE = int(TokenSource.PROMPT_LOOKUP), int(TokenSource.PHRASE)
RECYCLED_SOURCE = int(TokenSource.RECYCLED)
# First guess of the probability that the target's n-th likeliest successor elsewhere is right here.
RANK_SCORES = np.array([0.45, 0.25, 0.15, 0.09, 0.06, 0.04, 0.03, 0.015])
OWN_WEIGHT = 4.0  # of the request's own text against shared phrases
CERTAINTY = 1.0 - 1e-6  # so that siblings' estimates sum to less than one despite rounding


# A continuation. `own`, `others`: its counts in the request's own text and in shared phrases.
# `weight`: its blended probability; `weight_of_own`: the part of it that comes from own text.
# `rank`: of a looked-up continuation, its index among the blended ones.
CONTINUATION = np.dtype(
    [
        ("token", np.int32),
        ("rank", np.int32),
        ("own", np.float64),
        ("others", np.float64),
        ("weight", np.float64),
        ("weight_of_own", np.float64),
    ],
    align=True,
)
# A node of a tree under construction, or an open end: a candidate node not yet in the tree. `run`:
# see calibration. `priority`: corrected path probability.
PHRASE_NODE = np.dtype(
    [
        ("token", np.int32),
        ("parent", np.int32),
        ("depth", np.int32),
        ("source", np.int32),
        ("run", np.int32),
        ("score", np.float64),
        ("priority", np.float64),
    ],
    align=True,
)
Successors = NDArray[np.int32]  # [vocabulary, ranks], -1 if unknown; [0, ranks] without a table
# An array of CONTINUATION or PHRASE_NODE: numba reads fields as attributes, numpy's types do not.
NodeRecords = Any


@compiled
def look_up(table: Table, key: np.uint64, own: bool, row: NodeRecords, known: int) -> int:
    """Adds one context's continuations to `row`, which holds `known` from the other table.

    `own`: whether `table` is that of the request's own text. Returns how many `row` holds now.
    """
    if table.words.size == 0:
        return known
    start = bucket_of(table, key)
    fingerprint = fingerprint_of(key)
    before = known
    ways = equal_lanes(table.words, start, fingerprint)
    while ways and known - before < MAX_CONTINUATIONS:
        place = start + int(lowest_bit(ways))
        ways &= ways - np.uint32(1)
        token = np.int32(table.words[place + TOKEN])
        found = 0
        while found < before and row[found].token != token:
            found += 1
        if found == before:
            found = known
            known += 1
            row[found].token = token
            row[found].own = 0.0
            row[found].others = 0.0
        if own:
            row[found].own += decayed(table, place)
        else:
            row[found].others += decayed(table, place)
    return known


@compiled
def subtract_counted(row: NodeRecords, known: int, blended: NodeRecords, found: int) -> int:
    """Subtracts from the counts of `row` what longer contexts have already counted.

    Sets each continuation's `rank`, its index in `blended`, and adds new tokens there. Returns how
    many `blended` holds now, at most MAX_BLENDED.
    """
    for place in range(known):
        rank = 0
        while rank < found and blended[rank].token != row[place].token:
            rank += 1
        row[place].rank = rank
        if rank == MAX_BLENDED:
            continue  # shorter contexts' further tokens matter least
        if rank == found:
            found += 1
            blended[rank].token = row[place].token
            blended[rank].weight = blended[rank].weight_of_own = 0.0
            blended[rank].own = blended[rank].others = 0.0
        own, others = row[place].own, row[place].others
        row[place].own = max(0.0, own - blended[rank].own)
        row[place].others = max(0.0, others - blended[rank].others)
        blended[rank].own, blended[rank].others = own, others
    return found


@compiled
def blend(
    own: Table, shared: Table, recent: Integers, length: int, row: NodeRecords, blended: NodeRecords
) -> int:
    """Prediction by partial matching over all contexts, the longest first.

    `recent` holds the last `length` tokens, latest first. A context takes
    total / (total + escape x distinct) of the probability mass that longer ones left. Only counts
    beyond those of longer contexts are used: whatever followed a long context was also counted for
    its suffixes. Returns how many tokens `blended` holds.
    """
    keys = np.empty(MAX_CONTEXT, np.uint64)
    key = SEED
    for level in range(length):
        key = mixed(key, recent[level])
        keys[level] = key
    found = 0
    mass = CERTAINTY
    for level in range(length - 1, -1, -1):
        known = look_up(own, keys[level], True, row, 0)
        known = look_up(shared, keys[level], False, row, known)
        found = subtract_counted(row, known, blended, found)
        total = weighted = distinct = 0.0
        for place in range(known):
            count = row[place].own + row[place].others
            if count <= MIN_COUNT:  # must not vote, nor count as distinct
                row[place].own = row[place].others = 0.0
                continue
            total += count
            weighted += OWN_WEIGHT * row[place].own + row[place].others
            distinct += 1.0
        if distinct == 0.0:
            continue
        trust = mass * total / (total + ESCAPES[level] * distinct)
        for place in range(known):
            rank = row[place].rank
            if rank < MAX_BLENDED:
                of_own = trust * OWN_WEIGHT * row[place].own / weighted
                blended[rank].weight += of_own + trust * row[place].others / weighted
                blended[rank].weight_of_own += of_own
        mass -= trust
        if mass < MIN_MASS:
            break
    return found


@compiled
def likeliest(blended: NodeRecords, found: int, kept: NodeRecords) -> int:
    """Copies the best MAX_CONTINUATIONS to `kept`, best first; ties go to the lower token id.

    Overwrites the weights of those copied. Returns how many there are.
    """
    count = min(found, MAX_CONTINUATIONS)
    for rank in range(count):
        best = 0
        for other in range(1, found):
            ahead = blended[other].weight - blended[best].weight
            if ahead > 0 or (ahead == 0 and blended[other].token < blended[best].token):
                best = other
        kept[rank] = blended[best]
        blended[best].weight = -1.0
    return count


@compiled
def open_ends(
    kept: NodeRecords,
    count: int,
    recycled: Integers,
    parent: int,
    depth: int,
    run: int,
    reach: float,
    calibration: Calibration,
    ends: NodeRecords,
    opened: int,
) -> int:
    """Appends a node's children to the open ends; returns the new number of ends.

    Successors in `recycled`, best first, share the probability that the other children leave.
    """
    total = 0.0
    for rank in range(count):
        end = ends[opened + rank]
        end.token, end.parent, end.depth, end.run = kept[rank].token, parent, depth, run
        of_own = 2.0 * kept[rank].weight_of_own > kept[rank].weight
        end.source = OWN_SOURCE if of_own else SHARED_SOURCE
        end.score = kept[rank].weight
        end.priority = correct(calibration, end.source, end.score, run)
        total += end.priority
    left = max(0.0, 1.0 - total)
    known = count
    for rank in range(recycled.size):
        if recycled[rank] < 0:
            break
        place = 0
        while place < known and kept[place].token != recycled[rank]:
            place += 1
        if place < known:
            continue
        end = ends[opened + count]
        end.token, end.parent, end.depth, end.run = recycled[rank], parent, depth, run
        end.source = RECYCLED_SOURCE
        end.score = RANK_SCORES[rank] * left
        end.priority = correct(calibration, RECYCLED_SOURCE, end.score, run)
        total += end.priority
        count += 1
    for place in range(opened, opened + count):
        ends[place].priority *= reach / max(1.0, total)
    return opened + count


@compiled
def best_end(
    ends: NodeRecords, opened: int, leaf_allowed: bool, has_child: NDArray[np.bool_]
) -> int:
    """Index of the likeliest open end, or -1; ties go to lower depth, token id, then parent.

    Without `leaf_allowed`, only ends whose parent has no child yet (`has_child[parent + 1]`) are
    considered.
    """
    best = -1
    for place in range(opened):
        end = ends[place]
        if not leaf_allowed and has_child[end.parent + 1]:
            continue
        if best < 0 or end.priority > ends[best].priority:
            best = place
        elif end.priority == ends[best].priority:
            leader = ends[best]
            if (end.depth, end.token, end.parent) < (leader.depth, leader.token, leader.parent):
                best = place
    return best


@compiled
def last_tokens(nodes: NodeRecords, node: int, context: Integers, recent: Integers) -> int:
    """Writes the tokens up to and including `node`, latest first, to `recent`.

    Returns how many they are, at most 8.
    """
    length = 0
    while node >= 0 and length < MAX_CONTEXT:
        recent[length] = nodes[node].token
        node = nodes[node].parent
        length += 1
    place = context.size - 1
    while place >= 0 and length < MAX_CONTEXT:
        recent[length] = context[place]
        place -= 1
        length += 1
    return length


@compiled
def grow_nodes(
    own: Table,
    shared: Table,
    successors: Successors,
    calibration: Calibration,
    context: Integers,
    run: int,
    stops: Stops,
    nodes: NodeRecords,
    max_depth: int,
    max_leaves: int,
    least: float,
) -> int:
    """Fills `nodes` best first, parents before children; returns how many there are.

    `context` holds at most the last 8 tokens, in order. `run`: how many of the text's last tokens
    phrases would have proposed. No node's corrected path probability is below `least`. Nothing
    follows a node whose token is one of `stops`.
    """
    row = np.empty(2 * MAX_CONTINUATIONS, CONTINUATION)
    blended = np.empty(MAX_BLENDED, CONTINUATION)
    kept = np.empty(MAX_CONTINUATIONS, CONTINUATION)
    nothing = np.empty(0, np.int32)
    # Upper bound: the root and every node open at most so many ends.
    ends = np.empty((nodes.size + 1) * (MAX_CONTINUATIONS + successors.shape[1]), PHRASE_NODE)
    has_child = np.zeros(nodes.size + 1, np.bool_)
    recent = np.empty(MAX_CONTEXT, np.int32)
    count = opened = leaves = 0
    node, depth, reach = -1, 0, 1.0
    while True:
        ended = node >= 0 and is_among(nodes[node].token, stops)
        if depth < max_depth and not ended:
            length = last_tokens(nodes, node, context, recent)
            found = blend(own, shared, recent, length, row, blended)
            best = likeliest(blended, found, kept)
            recycled = nothing
            if length > 0 and 0 <= recent[0] < successors.shape[0]:
                recycled = successors[recent[0]]
            opened = open_ends(
                kept, best, recycled, node, depth + 1, run + 1, reach, calibration, ends, opened
            )
        end = best_end(ends, opened, leaves < max_leaves, has_child)
        if end < 0 or ends[end].priority < least:
            return count
        nodes[count] = ends[end]
        opened -= 1
        ends[end] = ends[opened]
        node, depth, reach = count, nodes[count].depth, nodes[count].priority
        parent = nodes[count].parent + 1
        # A second guess can only be right if the first one was wrong, which ends the run.
        run = 0 if has_child[parent] else nodes[count].run
        # A first child replaces its parent as a leaf; the root does not count as one.
        leaves += has_child[parent] or parent == 0
        has_child[parent] = True
        count += 1
        if count == nodes.size:
            return count


@compiled
def grow_into(
    own_words: Words,
    own_state: Totals,
    own_decay: float,
    shared_words: Words,
    shared_state: Totals,
    shared_decay: float,
    successors: Successors,
    calibration: Calibration,
    context: Integers,
    run: int,
    stops: Stops,
    integers: Integers,
    values: Floats,
    max_depth: int,
    max_leaves: int,
    least: float,
) -> int:
    """`grow_nodes` with arguments that numba converts in microseconds; returns the node count.

    Writes the rows token, parent, source and run of `integers` [4, nodes], and the rows score and
    estimate of `values` [2, nodes].
    """
    nodes = np.empty(integers.shape[1], PHRASE_NODE)
    own = Table(own_words, own_state, own_decay)
    shared = Table(shared_words, shared_state, shared_decay)
    count = grow_nodes(
        own, shared, successors, calibration, context, run, stops, nodes, max_depth, max_leaves,
        least,
    )  # fmt: skip
    for node in range(count):
        integers[0, node] = nodes[node].token
        integers[1, node] = nodes[node].parent
        integers[2, node] = nodes[node].source
        integers[3, node] = nodes[node].run
        values[0, node] = nodes[node].score
        parent = nodes[node].parent
        above = 1.0 if parent < 0 else nodes[parent].priority
        values[1, node] = min(1.0, nodes[node].priority / above) if above > 0 else 0.0
    return count
