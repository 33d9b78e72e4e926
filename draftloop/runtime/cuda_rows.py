"""The operations of a padded step between matrices, on tensors: calls of `cuda_kernels`.

Importing this module requires Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from draftloop.runtime import cuda_kernels as kernels
from draftloop.runtime.cpu_stack import StackShape
from draftloop.runtime.cuda_inputs import Inputs

GATED = 1024  # values per program
WIDE = 2048  # wider rows get eight warps per program instead of four
# For attention: keys per block, by the bytes of a value; and parts that a row's keys are split in.
BLOCKS = {2: 64, 4: 32}
PARTS, MANY_PARTS, LONG = 4, 16, 4096
MIN_GROUP = 16  # rows of a tensor core's tile
WIDE_HEAD = 128  # heads with more dimensions get eight warps instead of four
EVERYTHING = 1 << 30  # a window that masks nothing


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """keys, values: [slots, kv_heads, rows, dim], the last two dimensions contiguous."""

    keys: Tensor
    values: Tensor


def add_and_norm(x: Tensor, delta: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    """Adds delta to x [rows, width] in place; returns its RMSNorm."""
    rows, width = x.shape
    out = torch.empty_like(x)
    kernels.add_and_norm[(rows,)](
        x, x if delta is None else delta, weight, out, epsilon,
        WIDTH=width, PADDED=triton.next_power_of_2(width), ADDED=delta is not None,
        num_warps=8 if width > WIDE else 4,
    )  # fmt: skip
    return out


def gate(joined: Tensor) -> Tensor:
    """silu(first half) * second half of [rows, 2 * width]."""
    rows, width = len(joined), joined.shape[1] // 2
    out = joined.new_empty(rows, width)
    kernels.gate[(rows, triton.cdiv(width, GATED))](
        joined, out, WIDTH=width, BLOCK=GATED, num_warps=4
    )
    return out


def rope_and_store(
    joined: Tensor,
    angles: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None,
    inputs: Inputs,
    layer: CacheLayer,
    shape: StackShape,
) -> Tensor:
    """Queries [rows, heads, dim] after RoPE; keys and values go to the rows' places in the cache.

    joined: [rows, (heads + 2 * kv_heads) * dim]; angles: [positions, 1, dim] each; norms: [dim].
    """
    rows, half = len(joined), shape.dim // 2
    queries = joined.new_empty(rows, shape.heads, shape.dim)
    kernels.rope_and_store[(rows, shape.heads + 2 * shape.kv_heads)](
        joined, *angles, *(norms or angles), inputs.slots, inputs.stored, inputs.seen, queries,
        layer.keys, layer.values, layer.keys.stride(0), layer.keys.stride(1), shape.epsilon,
        QUERIES=shape.heads, KEYS=shape.kv_heads, HALF=half, PADDED=triton.next_power_of_2(half),
        NORMED=norms is not None, num_warps=1,
    )  # fmt: skip
    return queries


def attend(
    queries: Tensor, inputs: Inputs, layer: CacheLayer, shape: StackShape, window: int | None
) -> Tensor:
    """Attention output [rows, heads * dim], visibility as in `inputs`; 0 for padding rows."""
    rows, heads, dim = queries.shape
    parts = PARTS if layer.keys.shape[2] <= LONG else MANY_PARTS
    block, dims = BLOCKS[queries.element_size()], max(16, triton.next_power_of_2(dim))
    group, seen = heads // shape.kv_heads, EVERYTHING if window is None else window
    sums = torch.empty(rows, heads, parts, dim, device=queries.device)
    tops, totals = torch.empty(2, rows, heads, parts, device=queries.device).unbind()
    kernels.attend_in_parts[(rows, shape.kv_heads, parts)](
        queries, layer.keys, layer.values, inputs.slots, inputs.seen, inputs.prefixes,
        inputs.paths, sums, tops, totals, layer.keys.stride(0), layer.keys.stride(1), shape.scale,
        seen, inputs.paths.shape[1], KEYS=shape.kv_heads, GROUP=group,
        GROUP_PADDED=max(MIN_GROUP, triton.next_power_of_2(group)), DIM=dim, DIM_PADDED=dims,
        BLOCK=block, PARTS=parts, num_warps=8 if dims > WIDE_HEAD else 4, num_stages=2,
    )  # fmt: skip
    out = torch.empty_like(queries)
    kernels.join_parts[(rows, heads)](
        sums, tops, totals, inputs.seen, out, seen,
        HEADS=heads, DIM=dim, DIM_PADDED=dims, BLOCK=block, PARTS=parts, num_warps=1,
    )  # fmt: skip
    return out.view(rows, heads * dim)
