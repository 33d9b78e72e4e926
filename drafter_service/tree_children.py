"""Compiled loops that add the draft model's proposals to a tree and learn from verdicts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from drafter_service.tree_nodes import (
    BY_CALIBRATION,
    BY_REVIEWS,
    MISSING,
    NOT_JUDGED,
    SOURCE,
    Learned,
    Tree,
    add,
    child,
    normalize,
    sibling_factor,
    top_indices,
)
from drafter_service.weighing import FREE, SMALLER, chance, learn, log_odds
from draftloop.calibration import Calibration
from draftloop.runtime.calibrating import cell_of, correct, count
from draftloop.runtime.compiling import compiled
from draftloop.runtime.records import Floats, Whole
from draftloop.tree import ROOT


@compiled
def store_outputs(tree: Tree, tokens: Whole, shares: Floats) -> None:
    """Stores the draft model's best tokens after the ends, which were just run."""
    width = min(tokens.shape[1], tree.model_tokens.shape[1])
    for place in range(tree.state[0].ends):
        row = tree.nodes[tree.ends[place]].row
        tree.model_tokens[row, :width] = tokens[place, :width]
        tree.model_shares[row, :width] = shares[place, :width]
        tree.model_shares[row, width:] = 0.0


class Offered(NamedTuple):
    """Offered nodes whose parents are ends.

    places: index of each one's parent among the ends. shares: each one's share of the draft model's
    scores. are_exact: 1, or 0 if only a maximum of the share is known.
    """

    nodes: Whole
    places: Whole
    shares: Floats
    are_exact: Whole


@compiled
def offered_children(tree: Tree) -> Offered:
    """The offered children of the ends; their shares are still 0."""
    count, state = 0, tree.state[0]
    most = state.nodes if state.has_offer else 0
    nodes, places = np.empty(most, np.int64), np.empty(most, np.int64)
    for node in range(most):
        for place in range(state.ends):
            if tree.nodes[node].parent == tree.ends[place]:
                nodes[count], places[count] = node, place
                count += 1
    return Offered(nodes[:count], places[:count], np.zeros(count), np.ones(count, np.int64))


@compiled
def score_offered(tree: Tree, learned: Learned, guesses: Offered, tokens: Whole) -> None:
    """Re-estimates offered nodes by the draft model's shares.

    tokens: [ends, k], the draft model's tokens after every end, best first.
    """
    for guess in range(len(guesses.nodes)):
        known = tree.nodes[guesses.nodes[guess]]
        known.judged_by = BY_REVIEWS if guesses.are_exact[guess] else NOT_JUDGED
        known.is_first = tokens[guesses.places[guess], 0] == known.token
        known.share_odds, known.offer_odds = (
            log_odds(guesses.shares[guess]),
            log_odds(known.estimate),
        )
        source = SMALLER if known.source == SOURCE else FREE
        known.estimate = chance(
            learned.reviews, source, known.share_odds, known.offer_odds, known.is_first
        )


@compiled
def add_model_children(tree: Tree, calibration: Calibration, tokens: Whole, shares: Floats) -> None:
    """Adds the draft model's children of the ends: at most `most`, those with the greatest reach.

    tokens, shares: [ends, k], best first.
    """
    plan, state = tree.plan[0], tree.state[0]
    ends, width = int(state.ends), min(shares.shape[1], plan.children)
    estimates, reaches = np.zeros(ends * width), np.zeros(ends * width)
    for place in range(ends):
        parent = tree.nodes[tree.ends[place]]
        parent.grown = 1
        first = place * width
        for rank in range(width):
            share = shares[place, rank]
            if share > 0:
                depth, is_first = parent.depth + 1, rank == 0
                estimates[first + rank] = correct(calibration, SOURCE, share, depth, is_first)
        later = estimates[first + 1 : first + width]
        later *= sibling_factor(estimates[first], later.sum())
        for spot in range(first, first + width):
            reaches[spot] = parent.reach * estimates[spot]
    best = np.empty(min(plan.most, ends * width), np.int64)
    found = top_indices(reaches, ends * width, len(best), plan.least, best)
    state.first_new = state.nodes
    for spot in best[:found]:
        place, rank = spot // width, spot % width
        parent, token = tree.ends[place], tokens[place, rank]
        if reaches[spot] <= 0:
            break
        if child(tree, parent, token) == MISSING:
            depth, share = tree.nodes[parent].depth + 1, shares[place, rank]
            cell = cell_of(SOURCE, share, depth, rank == 0)
            add(tree, parent, token, SOURCE, estimates[spot], reaches[spot], BY_CALIBRATION, cell)
    state.drafted += state.nodes - state.first_new


@compiled
def take(tree: Tree, learned: Learned, tokens: Whole, shares: Floats, guesses: Offered) -> float:
    """Processes the outputs after the ends: re-estimates offered children and adds new ones.

    Returns the gain: the summed reach of the new nodes, relative to that of the ends.
    """
    state = tree.state[0]
    if len(guesses.nodes):
        score_offered(tree, learned, guesses, tokens)
        normalize(tree)
    add_model_children(tree, learned.calibration, tokens, shares)
    if state.has_offer:
        normalize(tree)
    reached, gain = 0.0, 0.0
    for end in tree.ends[: state.ends]:
        reached += tree.nodes[end].reach
    for node in range(state.first_new, state.nodes):
        gain += tree.nodes[node].reach
    return gain / reached if reached else 0.0


@compiled
def take_known(tree: Tree, learned: Learned) -> None:
    """`take` for ends that were all run before, with the stored outputs.

    Only the best tokens are stored. An offered node that is not among them counts with the largest
    share that it may have; the reviews learn nothing from it.
    """
    state = tree.state[0]
    ends, width = int(state.ends), tree.model_tokens.shape[1]
    tokens, shares = np.zeros((ends, width), np.int64), np.zeros((ends, width))
    for place in range(ends):
        row = tree.nodes[tree.ends[place]].row
        tokens[place], shares[place] = tree.model_tokens[row], tree.model_shares[row]
    guesses = offered_children(tree)
    for known in range(len(guesses.nodes)):
        place, token = guesses.places[known], tree.nodes[guesses.nodes[known]].token
        stored, least, rest = False, 1.0, 1.0
        for rank in range(width):
            share = shares[place, rank]
            if share > 0:
                least, rest = share, rest - share
                if tokens[place, rank] == token:
                    stored, guesses.shares[known] = True, share
        if not stored:
            guesses.shares[known], guesses.are_exact[known] = min(least, max(rest, 0.0)), 0
    take(tree, learned, tokens, shares, guesses)


@compiled
def judge(tree: Tree, learned: Learned, emitted: Whole) -> None:
    """Learns which children of the nodes along the `emitted` tokens were right, and which not."""
    at = ROOT
    for token in emitted:
        following = MISSING
        for node in range(at + 1, tree.state[0].nodes):
            known = tree.nodes[node]
            if known.parent == at:
                right = known.token == token
                if known.judged_by == BY_CALIBRATION:
                    count(learned.calibration, known.cell, right)
                elif known.judged_by == BY_REVIEWS:
                    source = SMALLER if known.source == SOURCE else FREE
                    learn(
                        learned.reviews,
                        source,
                        known.share_odds,
                        known.offer_odds,
                        known.is_first,
                        right,
                    )
                if right:
                    following = node
        if following == MISSING:
            break
        at = following
