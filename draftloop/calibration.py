"""Calibration: of the nodes that were offered with a score, how many were accepted.

A raw score, such as a draft model's probability, is off by a factor of 0.7 to 2 (OPT-Tree's own
estimates, 2406.17276). Every node whose parent was accepted is one trial, counted by source, score
and run. Old trials fade, so that the correction follows the text.

A node's run is the number of consecutive proposed tokens that are right if the node is. For a node
of a draft model, it is the node's depth. For a node of a phrase, the tokens for which the text has
already followed the phrase count as well.

A draft model's first choice is accepted far more often than a later one with the same score. This
holds above all without noise, where only the target's most likely token counts. Later choices are
therefore counted separately.

Compiled loops calibrate with the same functions, through `draftloop.runtime.calibrating`, so these
functions use only what numba can compile.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import NamedTuple

from draftloop.tree import ROOT, DraftTree, TokenSource, Verdict

# Upper edges of the buckets; an edge itself belongs to the next bucket.
SCORE_EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
RUN_EDGES = (2, 3, 5, 9, 17, 33)
# Index, after a score's run buckets, of their total: the prior for a run with few trials.
RUNS_TOGETHER = len(RUN_EDGES) + 1
# Added to the source's number for proposals that are not their source's first choice.
LATER = max(TokenSource) + 1
SHAPE = (2 * LATER, len(SCORE_EDGES) + 1, RUNS_TOGETHER + 1)
# Weight of the prior, in trials.
PRIOR_TRIALS = 8.0
MEMORY = 0.99


class _Cells(NamedTuple):
    """`hits` and `trials`, as flat arrays in row-major order.

    Their shape is [source, or source + LATER; score bucket; run bucket]. A named tuple of buffers
    can be passed to compiled loops as it is.
    """

    hits: array[float]
    trials: array[float]


class Calibration(_Cells):
    """Faded counts of hits and trials for every cell; all start at zero."""

    __slots__ = ()

    def __new__(cls) -> Calibration:
        cells = SHAPE[0] * SHAPE[1] * SHAPE[2]
        return super().__new__(cls, array("d", bytes(8 * cells)), array("d", bytes(8 * cells)))

    def observe(
        self,
        draft: DraftTree,
        scores: Sequence[float],
        verdict: Verdict,
        runs: Sequence[int] | None = None,
        nodes: Collection[int] | None = None,
    ) -> None:
        """Counts a verdict on `draft`, whose nodes had these raw scores and runs.

        `runs` defaults to the nodes' depths, `nodes` (which nodes to count) to all nodes.
        """
        accepted = {ROOT, *verdict.accepted_nodes}
        runs = draft.depths() if runs is None else runs
        for node, (parent, score) in enumerate(zip(draft.parents, scores, strict=True)):
            if parent in accepted and (nodes is None or node in nodes):
                cell = cell_of(draft.sources[node], score, runs[node])
                count(self, cell, node in accepted)


def correct(
    known: Calibration, source: int, score: float, run: int, is_first: bool = True
) -> float:
    """Probability, 0 to 1, that a child with this score is accepted once its parent was."""
    cell = cell_of(source, score, run, is_first)
    return estimate(known, cell, estimate(known, pooled_cell(cell), score))


def estimate(known: Calibration, cell: int, prior: float) -> float:
    """The hit rate of a cell, shrunk towards `prior` as long as there are few trials."""
    return (known.hits[cell] + PRIOR_TRIALS * prior) / (known.trials[cell] + PRIOR_TRIALS)


def count(known: Calibration, cell: int, hit: bool) -> None:
    """Counts one trial, in the cell and in the total over its runs."""
    for place in (cell, pooled_cell(cell)):
        known.hits[place] = MEMORY * known.hits[place] + hit
        known.trials[place] = MEMORY * known.trials[place] + 1


def cell_of(source: int, score: float, run: int, is_first: bool = True) -> int:
    """Index of the cell in which trials of such a node are counted.

    `is_first`: whether the node is its source's first choice among siblings.
    """
    row = source if is_first else source + LATER
    return (row * SHAPE[1] + bucket(SCORE_EDGES, score)) * SHAPE[2] + bucket(RUN_EDGES, run)


def pooled_cell(cell: int) -> int:
    """Index of the cell that sums up all runs with the same source and score."""
    return cell - cell % SHAPE[2] + RUNS_TOGETHER


def bucket(edges: tuple[float, ...], value: float) -> int:
    """Number of `edges`, in ascending order, that are less than or equal to `value`."""
    reached = 0
    for edge in edges:
        if value < edge:
            break
        reached += 1
    return reached
