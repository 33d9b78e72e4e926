"""Attention over our cache, registered in transformers' attention interface.

All sessions' new tokens lie in one row [1, heads, tokens, head_dim]; every session's segment
attends to its own slot, so a session's result does not depend on who shares the forward.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, PretrainedConfig

from draftloop.errors import StartupFailure
from draftloop.runtime.forward import Batch, Segment
from draftloop.runtime.kv_cache import KVCache

NAME = "draftloop"
LAYER_TYPES = {"full_attention", "sliding_attention"}


def require_supported(config: PretrainedConfig) -> None:
    """Raises StartupFailure where the model's attention is none that `attend` computes."""
    needs = []
    if getattr(config, "attn_logit_softcapping", None):
        needs.append("soft-capped attention scores")
    if not hasattr(config, "num_attention_heads"):
        needs.append("layers without attention heads")
    needs += sorted(set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES)
    if needs:
        raise StartupFailure(
            f"model: {config.model_type} needs {', '.join(needs)}, which is not supported; "
            f"serve a model with plain or sliding-window attention such as Llama, Qwen2 or Mistral"
        )


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    draftloop_batch: Batch | None = None,
    draftloop_cache: KVCache | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Stores the new keys and values and attends; returns ([1, tokens, heads, head_dim], None)."""
    if softcap is not None or s_aux is not None:
        raise NotImplementedError("attention with soft-capped scores or sinks is not supported")
    if draftloop_batch is None or draftloop_cache is None:
        raise NotImplementedError("this model does not pass its arguments on to its attention")
    layer = module.layer_idx
    assert isinstance(layer, int)
    keys, values = draftloop_cache.keys[layer], draftloop_cache.values[layer]
    outputs = []
    for segment in draftloop_batch.segments:
        rows = slice(segment.start, segment.stop)
        stored = slice(segment.stored_from, segment.stored_to)
        keys[segment.slot, :, stored] = key[0, :, rows]
        values[segment.slot, :, stored] = value[0, :, rows]
        outputs.append(
            functional.scaled_dot_product_attention(
                query[:, :, rows].to(keys.dtype),
                keys[segment.slot : segment.slot + 1, :, : segment.stored_to],
                values[segment.slot : segment.slot + 1, :, : segment.stored_to],
                attn_mask=_windowed(segment, sliding_window, query.device),
                is_causal=segment.causal and sliding_window is None,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
    attended = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return attended.transpose(1, 2).to(query.dtype), None


def _windowed(segment: Segment, window: int | None, device: torch.device) -> Tensor | None:
    """The segment's mask without what lies `window` or more positions back."""
    if window is None:
        return segment.mask
    if window not in segment.windowed_masks:
        positions = segment.stored_positions
        near = positions[None, :] > positions[segment.stored_from :, None] - window
        mask = np.tri(len(near), len(positions), k=segment.stored_from, dtype=np.bool_) & near
        windowed = torch.from_numpy(mask).to(device)
        if segment.mask is not None:
            windowed = segment.mask & windowed
        segment.windowed_masks[window] = windowed
    return segment.windowed_masks[window]


AttentionInterface.register(NAME, attend)
