"""Attention on CPUs, batch-invariant: a row's result is bit for bit the same alone and in a batch.

Torch's attention sums a single row in another order than several rows. So where two tokens are
nearly tied, a token verified in a draft could differ from the same token decoded alone. Here the
order of sums is fixed, whatever other rows are computed: one chain of sums per score (over the
dimensions), one over the visible keys for the sum of weights, and one per dimension of the result.
Masked keys have weight exactly 0, and adding 0 changes no bit, so it does not matter where in the
cache the branches of a draft tree lie. See docs/decisions/0006-cpu-attention.md.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftloop.runtime.cpu_linear import UNIT
from draftloop.runtime.scoring import Scoring

if UNIT is not None:
    from draftloop.runtime import cpu_attention_kernel as kernel
    from draftloop.runtime.vector_unit import lanes_for

Bias = npt.NDArray[np.float32]

ROW_STEP = 1024  # keys; bias rows that mask nothing are cached for multiples of it


def supports(dtype: torch.dtype, dim: int) -> bool:
    """Whether this machine has a kernel for this cache dtype and `dim` dimensions per head."""
    return (
        UNIT is not None and dtype in (torch.float32, torch.bfloat16) and lanes_for(UNIT, dim) > 0
    )


def fits(query: Tensor, keys: Tensor) -> bool:
    """Whether the kernel takes queries [1, heads, rows, dim] for a cache of these keys."""
    return keys.is_cpu and supports(keys.dtype, query.shape[-1])


def bias_of(mask: npt.NDArray[np.bool_] | None, stored: int) -> Bias:
    """The bias that is added to scores: 0 where a row attends to a key, else -inf.

    Returns [rows, at least stored]. mask: [rows, stored], or None for one row that attends to all.
    """
    assert UNIT is not None, "fits() comes first"
    width = UNIT.padded(stored)
    if mask is None:
        row = _open_row(-(-stored // ROW_STEP) * ROW_STEP)
        start = len(row) - UNIT.lanes - stored
        return row[None, start : start + width]
    bias = np.full((len(mask), width), -np.inf, np.float32)
    bias[:, :stored][mask] = 0
    return bias


@functools.cache
def _open_row(keys: int) -> Bias:
    """A bias row of `keys` visible keys, then one vector of masked ones; read-only."""
    assert UNIT is not None
    row = np.zeros(keys + UNIT.lanes, np.float32)
    row[keys:] = -np.inf
    row.flags.writeable = False
    return row


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Bias,
    stored: int,
    scoring: Scoring,
) -> Tensor:
    """Attention output, float32 [rows, heads, dim].

    query: float32 [heads, rows, dim], last stride 1. keys, values: a slot's [kv_heads, room, dim],
    float32 or bfloat16, contiguous except for the first stride; their first `stored` rows are used,
    with `bias`.
    """
    assert UNIT is not None, "fits() comes first"
    heads, rows, dim = query.shape
    out = query.new_empty(rows, heads, dim)
    call = kernel.CALL.pack(
        query.data_ptr(), keys.data_ptr(), values.data_ptr(), bias.ctypes.data, out.data_ptr(),
        rows, stored, bias.shape[1], heads, heads // keys.shape[0],
        query.stride(0), query.stride(1), keys.stride(0), scoring.scale, torch.get_num_threads(),
        scoring.cap or 0.0, 0 if scoring.sinks is None else scoring.sinks.data_ptr(),
    )  # fmt: skip
    variant = kernel.Variant(scoring.cap is not None, scoring.sinks is not None)
    kernel.compiled(UNIT, keys.dtype, dim, variant)(call)
    return out
