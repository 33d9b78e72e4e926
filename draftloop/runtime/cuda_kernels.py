"""Triton kernels of a padded step: the operations between the matrices of a decoder, row by row.

Importing this module requires Triton. Every program computes one row, or one head of one, in an
order that depends only on the model's sizes and the row's position. So its bits depend neither on
the other rows nor on its place among them. Triton requires all constants as arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import triton
import triton.language as tl

Kernel = Any  # called as kernel[grid](arguments)
jit = cast(Callable[[Callable[..., None]], Kernel], triton.jit)


@jit
def add_and_norm(
    x: tl.tensor,
    delta: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    epsilon: tl.tensor,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ADDED: tl.constexpr,
) -> None:
    """x [rows, WIDTH] += delta; out: RMSNorm of x. One program per row."""
    place = tl.arange(0, PADDED)
    inside = place < WIDTH
    at = tl.program_id(0) * WIDTH + place
    kind = out.dtype.element_ty
    wide = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if ADDED:
        more = tl.load(delta + at, mask=inside, other=0.0).to(tl.float32)
        wide = (wide + more).to(kind).to(tl.float32)
        tl.store(x + at, wide.to(kind), mask=inside)
    root = tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + epsilon)
    scaled = (wide * root).to(kind).to(tl.float32)
    weights = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (scaled * weights).to(kind), mask=inside)


@jit
def gate(joined: tl.tensor, out: tl.tensor, WIDTH: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """silu(first half) * second half of [rows, 2 * WIDTH]; programs: rows, blocks of a row."""
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < WIDTH
    row = tl.program_id(0)
    at = row * 2 * WIDTH + place
    kind = out.dtype.element_ty
    opened = tl.load(joined + at, mask=inside, other=0.0).to(tl.float32)
    activated = tl.load(joined + at + WIDTH, mask=inside, other=0.0).to(tl.float32)
    opened = (opened / (1.0 + tl.exp(-opened))).to(kind).to(tl.float32)
    tl.store(out + row * WIDTH + place, (opened * activated).to(kind), mask=inside)


@jit
def rope_and_store(
    joined: tl.tensor, cosines: tl.tensor, sines: tl.tensor, query_norm: tl.tensor, key_norm:
    tl.tensor, slots: tl.tensor, stored: tl.tensor, seen: tl.tensor, queries: tl.tensor, keys:
    tl.tensor, values: tl.tensor, slot_stride: tl.tensor, head_stride: tl.tensor, epsilon:
    tl.tensor, QUERIES: tl.constexpr, KEYS: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr,
    NORMED: tl.constexpr,
) -> None:  # fmt: skip
    """RoPE on queries and keys; keys and values go to the cache. Programs: rows, all their heads.

    joined: [rows, QUERIES + 2 * KEYS, 2 * HALF]. A row whose place in the slot is -1 is not stored.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    half = tl.arange(0, PADDED)
    inside = half < HALF
    kind = queries.dtype.element_ty
    at = (row * (QUERIES + 2 * KEYS) + head) * 2 * HALF + half
    low = tl.load(joined + at, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(joined + at + HALF, mask=inside, other=0.0).to(tl.float32)
    if head < QUERIES + KEYS:
        if NORMED:
            norm = query_norm
            if head >= QUERIES:
                norm = key_norm
            square = (tl.sum(low * low, 0) + tl.sum(high * high, 0)) / (2 * HALF)
            root = tl.rsqrt(square + epsilon)
            first = tl.load(norm + half, mask=inside, other=0.0).to(tl.float32)
            second = tl.load(norm + HALF + half, mask=inside, other=0.0).to(tl.float32)
            low = ((low * root).to(kind).to(tl.float32) * first).to(kind).to(tl.float32)
            high = ((high * root).to(kind).to(tl.float32) * second).to(kind).to(tl.float32)
        angle = tl.maximum(tl.load(seen + row) - 1, 0) * 2 * HALF + half
        straight = tl.load(cosines + angle, mask=inside, other=0.0).to(tl.float32)
        across = tl.load(sines + angle, mask=inside, other=0.0).to(tl.float32)
        low_rotated = (low * straight).to(kind).to(tl.float32)
        low_rotated -= (high * across).to(kind).to(tl.float32)
        straight = tl.load(cosines + angle + HALF, mask=inside, other=0.0).to(tl.float32)
        across = tl.load(sines + angle + HALF, mask=inside, other=0.0).to(tl.float32)
        high_rotated = (high * straight).to(kind).to(tl.float32)
        high_rotated += (low * across).to(kind).to(tl.float32)
        low, high = low_rotated, high_rotated
    if head < QUERIES:
        target = queries + (row * QUERIES + head) * 2 * HALF + half
        tl.store(target, low.to(kind), mask=inside)
        tl.store(target + HALF, high.to(kind), mask=inside)
    else:
        place = tl.load(stored + row)
        whose = (head - QUERIES) % KEYS
        to = tl.load(slots + row).to(tl.int64) * slot_stride + whose.to(tl.int64) * head_stride
        to = to + place.to(tl.int64) * (2 * HALF) + half
        kept = inside & (place >= 0)
        is_key = kept & (head < QUERIES + KEYS)
        is_value = kept & (head >= QUERIES + KEYS)
        tl.store(keys + to, low.to(kind), mask=is_key)
        tl.store(keys + to + HALF, high.to(kind), mask=is_key)
        tl.store(values + to, low.to(kind), mask=is_value)
        tl.store(values + to + HALF, high.to(kind), mask=is_value)


@jit
def attend_in_parts(
    queries: tl.tensor, keys: tl.tensor, values: tl.tensor, slots: tl.tensor, seen: tl.tensor,
    prefixes: tl.tensor, paths: tl.tensor, sums: tl.tensor, tops: tl.tensor, totals: tl.tensor,
    slot_stride: tl.tensor, head_stride: tl.tensor, scale: tl.tensor, window: tl.tensor, path_width:
    tl.tensor, KEYS: tl.constexpr, GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, DIM:
    tl.constexpr, DIM_PADDED: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """A part of one row's attention in one group of heads. Programs: rows, key heads, parts.

    A row's keys are ordered by position, wherever in the slot they are stored; block b of them
    belongs to part b % PARTS. sums: [rows, KEYS * GROUP, PARTS, DIM]; tops (maxima) and totals
    (sums of weights): the same without DIM. All are float32, and written if the part has a block.
    """
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    stop = tl.load(seen + row)
    first = tl.maximum(stop - window, 0)
    start = first // BLOCK
    start += (part + PARTS - start % PARTS) % PARTS
    blocks = (stop + BLOCK - 1) // BLOCK
    if start < blocks:
        dims, member = tl.arange(0, DIM_PADDED), tl.arange(0, GROUP_PADDED)
        here, inside = (member < GROUP)[:, None], (dims < DIM)[None, :]
        heads = (row * KEYS + head) * GROUP + member
        query = tl.load(
            queries + heads[:, None] * DIM + dims[None, :], mask=here & inside, other=0.0
        )
        known = tl.load(prefixes + row)
        base = tl.load(slots + row).to(tl.int64) * slot_stride + head.to(tl.int64) * head_stride
        top = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
        total = tl.zeros([GROUP_PADDED], tl.float32)
        summed = tl.zeros([GROUP_PADDED, DIM_PADDED], tl.float32)
        for block in range(start, blocks, PARTS):
            position = block * BLOCK + tl.arange(0, BLOCK)
            shown = (position >= first) & (position < stop)
            drafted = shown & (position >= known)
            path = paths + row * path_width + (position - known)
            place = tl.where(drafted, tl.load(path, mask=drafted, other=0), position)
            at = (base + place.to(tl.int64) * DIM)[:, None] + dims[None, :]
            key = tl.load(keys + at, mask=shown[:, None] & inside, other=0.0)
            score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
            score = tl.where(shown[None, :], score, float("-inf"))
            higher = tl.maximum(top, tl.max(score, 1))
            weight = tl.exp(score - higher[:, None])
            shrunk = tl.exp(top - higher)
            value = tl.load(values + at, mask=shown[:, None] & inside, other=0.0)
            total = total * shrunk + tl.sum(weight, 1)
            more = tl.dot(weight.to(value.dtype), value, input_precision="ieee")
            summed = summed * shrunk[:, None] + more
            top = higher
        to = heads * PARTS + part
        tl.store(tops + to, top, mask=member < GROUP)
        tl.store(totals + to, total, mask=member < GROUP)
        tl.store(sums + to[:, None] * DIM + dims[None, :], summed, mask=here & inside)


@jit
def join_parts(
    sums: tl.tensor,
    tops: tl.tensor,
    totals: tl.tensor,
    seen: tl.tensor,
    out: tl.tensor,
    window: tl.tensor,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    """Combines the parts that have a block to out [rows, HEADS, DIM]; 0 for padding rows."""
    row, head = tl.program_id(0), tl.program_id(1)
    stop = tl.load(seen + row)
    start = tl.maximum(stop - window, 0) // BLOCK
    blocks = (stop + BLOCK - 1) // BLOCK
    part, dims = tl.arange(0, PARTS), tl.arange(0, DIM_PADDED)
    there = start + (part + PARTS - start % PARTS) % PARTS < blocks
    inside = dims < DIM
    at = (row * HEADS + head) * PARTS + part
    top = tl.load(tops + at, mask=there, other=float("-inf"))
    share = tl.where(there, tl.exp(top - tl.max(top, 0)), 0.0)
    total = tl.sum(tl.load(totals + at, mask=there, other=0.0) * share, 0)
    summed = tl.load(
        sums + at[:, None] * DIM + dims[None, :], mask=there[:, None] & inside[None, :], other=0.0
    )
    attended = tl.sum(summed * share[:, None], 0) / total
    attended = tl.where(stop > 0, attended, 0.0)
    to = out + (row * HEADS + head) * DIM + dims
    tl.store(to, attended.to(out.dtype.element_ty), mask=inside)
