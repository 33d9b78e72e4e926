"""What estimates are worth: of the nodes that were offered with a score, how many were accepted.

A raw score, such as a draft model's probability, is off by a factor of 0.7 to 2 (OPT-Tree's own
estimates, 2406.17276). Every node whose parent was accepted is one trial of its source,
score and run; trials fade, so that the correction follows the text.

A node's run is how many guesses in a row will have been right if it is: a draft model's node stands
at its depth, and a phrase that the text has followed for long has those tokens behind it as well.

A draft model's first guess is right far more often than a later one with the same score, above all
without noise, where the target's first is all that counts: later ones are counted apart.

Compiled loops calibrate by these functions too, as `draftloop.runtime.calibrating` has them: they
keep to what numba compiles.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import NamedTuple

from draftloop.tree import ROOT, DraftTree, TokenSource, Verdict

# A bucket ends before its edge.
SCORE_EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
RUN_EDGES = (2, 3, 5, 9, 17, 33)
# Behind a score's runs stands the sum over them: what a run with few trials is judged by.
RUNS_TOGETHER = len(RUN_EDGES) + 1
# Added to the source of a guess that is not its source's first.
LATER = max(TokenSource) + 1
SHAPE = (2 * LATER, len(SCORE_EDGES) + 1, RUNS_TOGETHER + 1)
# How many trials a first guess is worth.
PRIOR_TRIALS = 8.0
MEMORY = 0.99


class _Cells(NamedTuple):
    """`hits` and `trials`: [source or with LATER, score bucket, run bucket], row by row.

    Buffers in a named tuple: compiled loops take it as it is.
    """

    hits: array[float]
    trials: array[float]


class Calibration(_Cells):
    """What is known of every cell; of none at first."""

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
        """Takes in a verdict on `draft`, whose nodes had these raw scores and runs.

        Runs are depths where none are given, and nodes all there are.
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
    return estimate(known, cell, estimate(known, together(cell), score))


def estimate(known: Calibration, cell: int, prior: float) -> float:
    """The hit rate of a cell, which `prior` stands for until it has trials."""
    return (known.hits[cell] + PRIOR_TRIALS * prior) / (known.trials[cell] + PRIOR_TRIALS)


def count(known: Calibration, cell: int, hit: bool) -> None:
    """Takes in one trial."""
    for place in (cell, together(cell)):
        known.hits[place] = MEMORY * known.hits[place] + hit
        known.trials[place] = MEMORY * known.trials[place] + 1


def cell_of(source: int, score: float, run: int, is_first: bool = True) -> int:
    """Where trials of such a node are counted, the first guess of its source or a later one."""
    row = source if is_first else source + LATER
    return (row * SHAPE[1] + bucket(SCORE_EDGES, score)) * SHAPE[2] + bucket(RUN_EDGES, run)


def together(cell: int) -> int:
    """The cell of all runs of the same source and score."""
    return cell - cell % SHAPE[2] + RUNS_TOGETHER


def bucket(edges: tuple[float, ...], value: float) -> int:
    """How many of the edges, in order, a value has reached."""
    reached = 0
    for edge in edges:
        if value < edge:
            break
        reached += 1
    return reached
