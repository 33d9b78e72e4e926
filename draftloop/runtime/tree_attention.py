"""Attention over our cache, registered in transformers' attention interface.

All sessions' new tokens lie in one row [1, heads, tokens, head_dim]; every session's segment
attends to its own slot, so a session's result does not depend on who shares the forward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from draftloop.runtime.forward import Batch, Segment
from draftloop.runtime.kv_cache import KVCache

NAME = "draftloop"


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    draftloop_batch: Batch | None = None,
    draftloop_cache: KVCache | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Stores the new keys and values and attends; returns ([1, tokens, heads, head_dim], None)."""
    assert draftloop_batch is not None and draftloop_cache is not None
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    keys, values = draftloop_cache.keys[layer], draftloop_cache.values[layer]
    outputs = []
    for segment in draftloop_batch.segments:
        rows = slice(segment.start, segment.stop)
        stored = slice(segment.stored_from, segment.stored_to)
        keys[segment.slot, :, stored] = key[0, :, rows]
        values[segment.slot, :, stored] = value[0, :, rows]
        outputs.append(
            functional.scaled_dot_product_attention(
                query[:, :, rows],
                keys[segment.slot : segment.slot + 1, :, : segment.stored_to],
                values[segment.slot : segment.slot + 1, :, : segment.stored_to],
                attn_mask=_windowed(segment, draftloop_batch, sliding_window),
                is_causal=segment.causal and sliding_window is None,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
    attended = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return attended.transpose(1, 2), None


def _windowed(segment: Segment, batch: Batch, window: int | None) -> Tensor | None:
    """The segment's mask without what lies `window` or more positions back."""
    if window is None or segment.stored_to <= window:
        return segment.mask if window is None or not segment.causal else _causal(segment)
    mask = _causal(segment) if segment.mask is None else segment.mask
    positions = torch.tensor(batch.positions[segment.start : segment.stop], device=mask.device)
    committed = torch.arange(segment.stored_to, device=mask.device)
    # Pending rows are younger than any window: only rows at their own position can be too old.
    too_old = committed[None, :] <= positions[:, None] - window
    too_old[:, segment.stored_from :] = False
    return mask & ~too_old


def _causal(segment: Segment) -> Tensor:
    rows = segment.stop - segment.start
    full = torch.ones(rows, segment.stored_to, dtype=torch.bool)
    return full.tril(segment.stored_to - rows)


AttentionInterface.register(NAME, attend)
