"""The tokens that filters leave, against a sort of the whole vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from draftloop.request import SamplingParameters
from draftloop.runtime.choices import EXCLUDED
from draftloop.runtime.filters import Filters, _outside


def filtered(logits: torch.Tensor, parameters: SamplingParameters) -> torch.Tensor:
    return Filters(parameters, logits.shape[-1]).applied(logits)


SPREADS = (0.0, 0.3, 1.0, 4.0, 40.0)
ROUNDING = 1e-6  # of a sum of weights in single precision


def nucleus(logits: torch.Tensor, top_p: float) -> list[int]:
    """The nucleus by its definition: the likeliest tokens, ties by lower id, up to `top_p`.

    Rejects examples for which single precision cannot tell.
    """
    weights = (logits.double() - logits.max()).exp().tolist()
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    target = top_p * sum(weights)
    kept: list[int] = []
    total = 0.0
    for token in order:
        assume(total == target or abs(total - target) > ROUNDING * target)
        if total >= target and kept:
            break
        kept.append(token)
        total += weights[token]
    return sorted(kept)


@settings(deadline=None)  # compiled at first use
@given(
    seed=st.integers(0, 999),
    spread=st.sampled_from(SPREADS),
    size=st.sampled_from([1, 2, 7, 96, 1000]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.95, 0.999]),
    coarse=st.booleans(),
)
def test_top_p_keeps_the_nucleus(
    seed: int, spread: float, size: int, top_p: float, coarse: bool
) -> None:
    """`coarse` logits, as of a model in bfloat16, have many ties."""
    logits = torch.randn(3, size, generator=torch.Generator().manual_seed(seed)) * spread
    if coarse:
        logits = logits.bfloat16().float()
    kept = filtered(logits, SamplingParameters(temperature=1.0, top_p=top_p))
    for row, filtered_row in zip(logits, kept, strict=True):
        kept_tokens = filtered_row.isfinite().nonzero().flatten().tolist()
        assert kept_tokens == nucleus(row, top_p)
        assert torch.equal(filtered_row[kept_tokens], row[kept_tokens])


@pytest.mark.parametrize("top_p", [0.9999999, 1 - 2**-24])
def test_top_p_near_one_keeps_nearly_all_tokens(top_p: float) -> None:
    logits = torch.randn(1, 4096, generator=torch.Generator().manual_seed(1))
    kept = filtered(logits, SamplingParameters(temperature=1.0, top_p=top_p)).isfinite()
    assert kept.sum() > 4000


def test_filters_do_not_modify_the_given_logits() -> None:
    logits = torch.randn(2, 50)
    before = logits.clone()
    filtered(logits, SamplingParameters(temperature=1.0, top_p=0.5, top_k=9, min_p=0.1))
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    "cut", [{"top_k": 9}, {"top_p": 0.5}, {"min_p": 0.5}, {"top_k": 9, "top_p": 0.5}], ids=str
)
def test_rows_with_nan_or_infinity_are_not_filtered(cut: dict[str, Any]) -> None:
    """Weights of NaN would index outside arrays, and the check for such rows must find them."""
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(1))
    logits[1] = torch.nan
    logits[2, 999] = torch.inf
    logits[3, 5] = torch.nan
    kept = filtered(logits, SamplingParameters(temperature=0.8, **cut))
    torch.testing.assert_close(kept[1:], logits[1:], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(kept[:1], filtered(logits[:1], SamplingParameters(temperature=0.8, **cut)))


@pytest.mark.parametrize(
    "cut",
    [{"top_k": 9}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 30, "top_p": 0.6, "min_p": 0.02}],
    ids=str,
)
def test_torch_filters_match_the_compiled_ones(cut: dict[str, Any]) -> None:
    """The filters of GPUs, also for rows with NaN or infinity, and for single rows."""
    logits = torch.randn(9, 1000, generator=torch.Generator().manual_seed(3)) * 3
    logits[1] = torch.nan
    logits[2, 999] = torch.inf
    parameters = SamplingParameters(temperature=0.8, **cut)
    excluded = _outside(logits, parameters)
    kept = logits.masked_fill(excluded, EXCLUDED)
    torch.testing.assert_close(kept, filtered(logits, parameters), rtol=0, atol=0, equal_nan=True)
    for row in range(len(logits)):
        assert torch.equal(_outside(logits[row : row + 1], parameters), excluded[row : row + 1])


@pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_fully_excluded_rows_are_not_filtered(cut: dict[str, Any]) -> None:
    """The weights of such a row are NaN, and used to be counted outside an array."""
    logits = torch.full((2, 96), EXCLUDED)
    logits[1, 7] = 1.0
    kept = filtered(logits, SamplingParameters(temperature=1.0, **cut))
    assert torch.equal(kept, logits)
