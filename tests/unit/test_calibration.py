"""Calibration: scores become acceptance rates, by source, and follow the text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftloop.calibration import (
    MEMORY,
    PRIOR_TRIALS,
    RUN_EDGES,
    SCORE_EDGES,
    Calibration,
    cell_of,
    correct,
    count,
)
from draftloop.runtime import calibrating
from draftloop.runtime.compiling import compiled
from draftloop.tree import ROOT, DraftTree, TokenSource, Verdict

PHRASE, DRAFT = TokenSource.PHRASE, TokenSource.DRAFT_MODEL
scores = st.floats(0, 1) | st.sampled_from(SCORE_EDGES)
depths = st.integers(1, 12) | st.sampled_from(RUN_EDGES)


def single_node_draft(source: TokenSource = PHRASE) -> DraftTree:
    return DraftTree.chain([7], source)


def verdict(*accepted: int) -> Verdict:
    return Verdict(accepted, (0,) * (len(accepted) + 1), root_prediction=0)


HIT, MISS = verdict(0), verdict()


@given(st.sampled_from(list(TokenSource)), scores, depths)
def test_uncalibrated_score_is_unchanged(source: TokenSource, score: float, depth: int) -> None:
    assert correct(Calibration(), source, score, depth) == pytest.approx(score)


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_measured_rates_replace_the_prior(rate: float) -> None:
    calibration = Calibration()
    for number in range(800):
        hit = number % 4 < 4 * rate
        calibration.observe(single_node_draft(), [0.6], HIT if hit else MISS)
    trials = 1 / (1 - MEMORY)
    expected = 0.6
    for _ in range(2):  # all depths together, then this depth
        expected = (rate * trials + PRIOR_TRIALS * expected) / (trials + PRIOR_TRIALS)
    assert correct(calibration, PHRASE, 0.6, 1) == pytest.approx(expected, abs=0.02)


def test_old_trials_fade_so_corrections_follow_the_text() -> None:
    calibration = Calibration()
    for _ in range(5000):
        calibration.observe(single_node_draft(), [0.6], HIT)
    assert max(calibration.trials) <= 1 / (1 - MEMORY)
    high = correct(calibration, PHRASE, 0.6, 1)
    for _ in range(200):
        calibration.observe(single_node_draft(), [0.6], MISS)
    assert correct(calibration, PHRASE, 0.6, 1) < 0.25 < high


def test_only_nodes_with_accepted_parents_are_counted() -> None:
    """A node below a rejected one says nothing about its own score."""
    tree = DraftTree((1, 2, 3, 4), (ROOT, 0, ROOT, 2), (0.5,) * 4, (PHRASE,) * 4)
    calibration = Calibration()
    calibration.observe(tree, [0.15, 0.25, 0.35, 0.45], verdict(0))
    # Each node is counted at its depth and over all depths.
    assert sum(calibration.trials) == 2 * 3 and sum(calibration.hits) == 2 * 1
    assert correct(calibration, PHRASE, 0.15, 1) > 0.15
    assert correct(calibration, PHRASE, 0.25, 2) < 0.25
    assert correct(calibration, PHRASE, 0.35, 1) < 0.35
    assert correct(calibration, PHRASE, 0.45, 2) == pytest.approx(0.45)


def test_sources_scores_and_depths_are_calibrated_separately() -> None:
    calibration = Calibration()
    for _ in range(50):
        calibration.observe(single_node_draft(), [0.6], MISS)
    assert correct(calibration, PHRASE, 0.6, 1) < 0.2
    assert correct(calibration, DRAFT, 0.6, 1) == pytest.approx(0.6)
    assert correct(calibration, PHRASE, 0.75, 1) == pytest.approx(0.75)
    assert correct(calibration, PHRASE, 0.6, 2) < 0.2  # nothing is known of this depth alone
    deeper = DraftTree.chain([7, 8], PHRASE)
    for _ in range(50):
        calibration.observe(deeper, [0.99, 0.6], verdict(0, 1))
    assert correct(calibration, PHRASE, 0.6, 2) > 0.8
    assert correct(calibration, PHRASE, 0.6, 1) < 0.3


def test_score_bucket_excludes_its_upper_edge() -> None:
    for edge in SCORE_EDGES:
        calibration = Calibration()
        calibration.observe(single_node_draft(), [edge], MISS)
        below = edge - 1e-9
        assert correct(calibration, PHRASE, edge, 1) < edge
        assert correct(calibration, PHRASE, below, 1) == pytest.approx(below)


def test_observe_requires_a_score_per_node() -> None:
    with pytest.raises(ValueError, match="argument"):
        Calibration().observe(single_node_draft(), [], MISS)


outcomes = st.lists(
    st.tuples(st.sampled_from(list(TokenSource)), scores, depths, st.booleans(), st.booleans()),
    max_size=40,
)


@compiled
def counted_and_corrected(
    calibration: Calibration, source: int, score: float, run: int, is_first: bool, hit: bool
) -> float:
    """Counts an observation in the compiled loop and returns the correction afterwards."""
    cell = calibrating.cell_of(source, score, run, is_first)
    calibrating.count(calibration, cell, hit)
    return calibrating.correct(calibration, source, score, run, is_first)


@settings(deadline=None)
@given(outcomes)
def test_corrections_are_probabilities_and_match_the_compiled_ones(
    observations: list[tuple[TokenSource, float, int, bool, bool]],
) -> None:
    calibration, compiled = Calibration(), Calibration()
    for source, score, run, is_first, hit in observations:
        count(calibration, cell_of(source, score, run, is_first), hit)
        corrected = correct(calibration, source, score, run, is_first)
        assert 0 <= corrected <= 1
        result = counted_and_corrected(compiled, int(source), score, run, is_first, hit)
        assert result == corrected  # to the last bit
    assert compiled == calibration
