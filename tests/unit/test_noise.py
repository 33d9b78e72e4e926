"""Gumbel noise: a pure function of (seed, position, token) with the right distribution."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from draftloop.runtime import cpu_noise
from draftloop.runtime.cpu_linear import UNIT
from draftloop.runtime.hashing import mix64
from draftloop.runtime.noise import (
    KEPT_POSITIONS,
    KEPT_VALUES,
    GumbelNoise,
    _gumbel_on_cpu,
    _hash_on_cpu,
)

CPU = torch.device("cpu")
MAX_SEED = 2**64 - 1


def new_noise(seed: int, size: int = 64) -> GumbelNoise:
    return GumbelNoise(seed, size, CPU)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, MAX_SEED), st.lists(st.integers(0, 10**6), min_size=1, max_size=5))
def test_batched_positions_match_single_ones(seed: int, positions: list[int]) -> None:
    batched = new_noise(seed).at(positions)
    alone = torch.cat([new_noise(seed).at([position]) for position in positions])
    assert torch.equal(batched, alone)
    assert batched.dtype == torch.float32


def test_known_values_do_not_change() -> None:
    """Drafter, verifier and replays by older releases rely on these bits of the hash."""
    assert mix64(0) == 0xE220A8397B1DCDAF  # splitmix64's first output for state 0
    first, second = new_noise(7).at([3])[0], new_noise(MAX_SEED).at([1000])[0]
    assert first[[0, 1, 63]].tolist() == pytest.approx([0.3667231, 1.4863502, 2.3552246])
    assert second[[0, 1, 63]].tolist() == pytest.approx([3.3644111, 0.08395503, 1.1346349])


def test_seeds_and_positions_draw_independently() -> None:
    drawn = [
        new_noise(seed, 4096).at([position])[0] for seed in (0, 1, MAX_SEED) for position in (0, 1)
    ]
    for first, second in itertools.combinations(drawn, 2):
        assert abs(np.corrcoef(first.exp().neg().numpy(), second.numpy())[0, 1]) < 0.08
        assert abs(np.corrcoef(first.numpy(), second.numpy())[0, 1]) < 0.08


def test_noise_is_gumbel_over_tokens_and_positions() -> None:
    over_tokens = new_noise(11, 20_000).at([5])[0].numpy()
    over_positions = new_noise(12, 2).at(range(3000))[:, 1].numpy()
    for sample in (over_tokens, over_positions):
        assert stats.kstest(sample, "gumbel_r").pvalue > 1e-3


def test_winner_among_equal_logits_is_uniform() -> None:
    winners = new_noise(3, 5).at(range(4000)).argmax(-1)
    assert stats.chisquare(winners.bincount(minlength=5).numpy()).pvalue > 1e-3


def test_large_vocabularies_have_finite_distinct_noise() -> None:
    drawn = new_noise(MAX_SEED, 262_144).at([1_000_000])[0]
    assert torch.isfinite(drawn).all()
    assert drawn.unique().numel() > 200_000
    assert 10 < drawn.max() < 23
    assert torch.equal(drawn[:1000], new_noise(MAX_SEED, 1000).at([1_000_000])[0])


@pytest.mark.skipif(UNIT is None, reason="no kernel for this CPU")
@pytest.mark.parametrize("size", [1, 7, 8, 513, 4096, 128_256])
def test_compiled_noise_matches_numpy(size: int) -> None:
    """Services on different machines must draw the same noise."""
    keys = np.array([mix64(place) for place in (0, 1, MAX_SEED)], np.uint64)
    expected = _gumbel_on_cpu(_hash_on_cpu(size, keys))
    compiled = cpu_noise.draw(size, keys).numpy()
    assert (compiled != expected).sum() <= 1
    np.testing.assert_allclose(compiled, expected, rtol=3e-7)


def test_cached_positions_are_bounded_but_not_dropped_while_in_use() -> None:
    """Guards against dropping a position that the same call requests."""
    source = new_noise(1, 8)
    for start in range(0, 600, 7):
        positions = [0, *range(start, start + 9)]
        assert torch.equal(source.at(positions), new_noise(1, 8).at(positions))
        assert len(source._kept) <= KEPT_POSITIONS
    large = new_noise(1, KEPT_VALUES // 4)
    for position in range(6):
        large.prepare([position])
    assert len(large._kept) <= 4
    assert len(source._kept) <= KEPT_POSITIONS
    assert source.at(range(KEPT_POSITIONS + 50)).shape == (KEPT_POSITIONS + 50, 8)
