"""Compiled loops that add what the draft model says to a tree, and learn what became of it."""

from __future__ import annotations

import numpy as np

from drafter_service.tree_nodes import (
    MISSING,
    OWN,
    REVIEWS,
    SOURCE,
    Learned,
    Tree,
    add,
    child,
    select,
    settle,
)
from draftloop.calibration import MEMORY, PRIOR_TRIALS, RUNS_TOGETHER, SHAPE
from draftloop.runtime.compiling import compiled
from draftloop.runtime.records import Floats, Whole
from draftloop.tree import ROOT
from phrase_store.growth import RUNS, SCORES, Correction, corrected

# What the draft model says of an offered node, in five levels. They stand where a calibration has
# depths: both scores together tell more of a reviewed node than its depth does.
LEVEL_EDGES, LEVEL_DEPTHS = np.array((0.02, 0.15, 0.5, 0.85)), np.array((1, 2, 3, 5, 9))
# How likely an offered node is before either is asked, and how sure a draft model may be of it.
USUAL, SUREST = 0.4, 0.9


@compiled
def remember(tree: Tree, tokens: Whole, shares: Floats) -> None:
    """Keeps what the draft model said after the ends, which were just run."""
    width = min(tokens.shape[1], tree.said_tokens.shape[1])
    for place in range(tree.state[0].ends):
        row = tree.nodes[tree.ends[place]].row
        tree.said_tokens[row, :width] = tokens[place, :width]
        tree.said_shares[row, :width] = shares[place, :width]
        tree.said_shares[row, width:] = 0.0


@compiled
def offered(tree: Tree, nodes: Whole, places: Whole) -> int:
    """What was offered under the ends, and under which; how many."""
    count, state = 0, tree.state[0]
    for node in range(state.nodes if state.has_offer else 0):
        for place in range(state.ends):
            if tree.nodes[node].parent == tree.ends[place]:
                nodes[count], places[count] = node, place
                count += 1
    return count


@compiled
def both(estimate: float, share: float) -> float:
    """Chance of a node that was offered with `estimate` and has `share` with the draft model.

    As if the two said so independently (naive Bayes); a draft model that has never seen a phrase
    does not outweigh a text that has followed it for long.
    """
    heard = min(max(share, 1 - SUREST), SUREST)
    odds = estimate * heard * (1 - USUAL)
    return odds / (odds + (1 - estimate) * (1 - heard) * USUAL)


@compiled
def buckets_of(score: float, run: int) -> tuple[int, int]:
    """Where a calibration counts trials with this score and run."""
    bucket = np.searchsorted(SCORES, score, side="right")
    return int(bucket), int(np.searchsorted(RUNS, run, side="right"))


@compiled
def cell_of(source: int, bucket: int, run: int) -> int:
    """`calibration.cell_of` by buckets."""
    return (source * SHAPE[1] + bucket) * SHAPE[2] + run


@compiled
def weigh(tree: Tree, reviews: Correction, nodes: Whole, shares: Floats, count: int) -> None:
    """Re-weighs offered nodes by the draft model's shares of them.

    How often an offered node with both scores was right before decides; `both` stands for that
    until it is known.
    """
    for place in range(count):
        known, share = tree.nodes[nodes[place]], shares[place]
        level = LEVEL_DEPTHS[np.searchsorted(LEVEL_EDGES, share, side="right")]
        source = known.source
        bucket, run = buckets_of(known.estimate, level)
        known.judged_by, known.cell = REVIEWS, cell_of(source, bucket, run)
        prior = PRIOR_TRIALS * both(known.estimate, share)
        hits, trials = reviews.hits[source, bucket, run], reviews.trials[source, bucket, run]
        known.estimate = (hits + prior) / (trials + PRIOR_TRIALS)


@compiled
def widen(tree: Tree, own: Correction, tokens: Whole, shares: Floats) -> None:
    """Adds the draft model's children of the ends, [ends, k] tokens and shares, as they pay.

    Of all of them those with the greatest reach.
    """
    state = tree.state[0]
    ends, width = int(state.ends), min(shares.shape[1], state.children)
    estimates, reaches = np.zeros(ends * width), np.zeros(ends * width)
    for place in range(ends):
        parent = tree.nodes[tree.ends[place]]
        parent.grown = 1
        first, total = place * width, 0.0
        for rank in range(width):
            share = shares[place, rank]
            if share > 0:
                estimates[first + rank] = corrected(own, SOURCE, share, parent.depth + 1)
                total += estimates[first + rank]
        for spot in range(first, first + width):
            estimates[spot] /= max(1.0, total)
            reaches[spot] = parent.reach * estimates[spot]
    best = np.empty(min(state.most, ends * width), np.int64)
    found = select(reaches, ends * width, len(best), state.least, best)
    state.first_new = state.nodes
    for spot in best[:found]:
        place, rank = spot // width, spot % width
        parent, token = tree.ends[place], tokens[place, rank]
        if reaches[spot] <= 0:
            break
        if child(tree, parent, token) == MISSING:
            depth, share = tree.nodes[parent].depth + 1, shares[place, rank]
            bucket, run = buckets_of(share, depth)
            cell = cell_of(SOURCE, bucket, run)
            add(tree, parent, token, SOURCE, estimates[spot], reaches[spot], OWN, cell)
    state.drafted += state.nodes - state.first_new


@compiled
def take(
    tree: Tree, learned: Learned, tokens: Whole, shares: Floats, nodes: Whole,
    shares_of_offered: Floats, count: int,
) -> float:  # fmt: skip
    """Takes in what was said after the ends: re-weighs what was offered there and adds children.

    `nodes`: the offered ones. Returns what the children add to what the ends promise, as a share.
    """
    state = tree.state[0]
    if count:
        weigh(tree, learned.reviews, nodes, shares_of_offered, count)
        settle(tree)
    widen(tree, learned.own, tokens, shares)
    if state.has_offer:
        settle(tree)
    reached, gain = 0.0, 0.0
    for end in tree.ends[: state.ends]:
        reached += tree.nodes[end].reach
    for node in range(state.first_new, state.nodes):
        gain += tree.nodes[node].reach
    return gain / reached if reached else 0.0


@compiled
def take_known(tree: Tree, learned: Learned) -> None:
    """`take` for ends that were all run before: nothing is computed again.

    Of what was offered there only the best tokens are known; others have no share.
    """
    state = tree.state[0]
    ends, width = int(state.ends), tree.said_tokens.shape[1]
    tokens, shares = np.zeros((ends, width), np.int64), np.zeros((ends, width))
    for place in range(ends):
        row = tree.nodes[tree.ends[place]].row
        tokens[place], shares[place] = tree.said_tokens[row], tree.said_shares[row]
    nodes, places = np.empty(state.nodes, np.int64), np.empty(state.nodes, np.int64)
    count = offered(tree, nodes, places)
    parts = np.zeros(count)
    for known in range(count):
        place = places[known]
        for rank in range(width):
            if tokens[place, rank] == tree.nodes[nodes[known]].token:
                parts[known] = max(parts[known], shares[place, rank])
    take(tree, learned, tokens, shares, nodes, parts, count)


@compiled
def judge(tree: Tree, learned: Learned, emitted: Whole) -> None:
    """Counts each child of a node that `emitted` tokens reach: right, or not."""
    at = ROOT
    for token in emitted:
        following = MISSING
        for node in range(at + 1, tree.state[0].nodes):
            known = tree.nodes[node]
            if known.parent == at:
                right = known.token == token
                if known.judged_by == OWN:
                    count(learned.own, known.cell, right)
                elif known.judged_by == REVIEWS:
                    count(learned.reviews, known.cell, right)
                if right:
                    following = node
        if following == MISSING:
            break
        at = following


@compiled
def count(correction: Correction, cell: int, hit: bool) -> None:
    """`Calibration.count`, compiled."""
    source, place = cell // (SHAPE[1] * SHAPE[2]), cell % (SHAPE[1] * SHAPE[2])
    bucket, run = place // SHAPE[2], place % SHAPE[2]
    for counted in (run, RUNS_TOGETHER):
        hits, trials = correction.hits[source, bucket], correction.trials[source, bucket]
        hits[counted] = MEMORY * hits[counted] + hit
        trials[counted] = MEMORY * trials[counted] + 1
