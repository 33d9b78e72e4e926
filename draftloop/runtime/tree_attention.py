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
from draftloop.runtime import cpu_attention
from draftloop.runtime.forward import Batch, Segment
from draftloop.runtime.kv_cache import KVCache, Mask

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
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    outputs = []
    for segment in draftloop_batch.segments:
        rows = slice(segment.start, segment.stop)
        stored = slice(segment.stored_from, segment.stored_to)
        keys[segment.slot, :, stored] = key[0, :, rows]
        values[segment.slot, :, stored] = value[0, :, rows]
        mine = query[:, :, rows]
        slot = keys[segment.slot], values[segment.slot]
        outputs.append(_segment_attention(mine, *slot, segment, sliding_window, scale))
    attended = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return attended[None].to(query.dtype), None


def _segment_attention(
    query: Tensor, keys: Tensor, values: Tensor, segment: Segment, window: int | None, scale: float
) -> Tensor:
    """[rows, heads, head_dim] for a query [1, heads, rows, head_dim] and the slot's whole room."""
    if cpu_attention.fits(query, keys):
        # Prompts too, where torch's blocked product would be up to a quarter faster: its bits
        # depend on the pieces in which a prompt is run, and those on the time that they take.
        bias = bias_of(segment, window)
        mine = query[0].float()
        return cpu_attention.attend(mine, keys, values, bias, segment.stored_to, scale)
    mask = _windowed(segment, window)
    if mask is not None and window not in segment.masks_on_device:
        segment.masks_on_device[window] = torch.from_numpy(mask).to(query.device)
    return functional.scaled_dot_product_attention(
        query.to(keys.dtype),
        keys[None, :, : segment.stored_to],
        values[None, :, : segment.stored_to],
        attn_mask=segment.masks_on_device.get(window),
        is_causal=segment.causal and window is None,
        scale=scale,
        enable_gqa=query.shape[1] != keys.shape[0],
    )[0].transpose(0, 1)


def bias_of(segment: Segment, window: int | None) -> cpu_attention.Bias:
    """What a segment's rows do not see, as `cpu_attention` wants it; made once for all layers."""
    if window not in segment.biases:
        mask = _windowed(segment, window)
        if mask is None and segment.stop - segment.start > 1:
            mask = _causal(segment)
        segment.biases[window] = cpu_attention.bias_of(mask, segment.stored_to)
    return segment.biases[window]


def _causal(segment: Segment) -> Mask:
    """Every row sees what was stored before it, and itself."""
    rows = segment.stop - segment.start
    return np.tri(rows, segment.stored_to, k=segment.stored_from, dtype=np.bool_)


def _windowed(segment: Segment, window: int | None) -> Mask | None:
    """A segment's mask without what lies `window` or more positions back."""
    if window is None:
        return segment.mask
    if window not in segment.windowed_masks:
        positions = segment.stored_positions
        near = positions[None, :] > positions[segment.stored_from :, None] - window
        windowed = _causal(segment) & near
        if segment.mask is not None:
            windowed &= segment.mask
        segment.windowed_masks[window] = windowed
    return segment.windowed_masks[window]


AttentionInterface.register(NAME, attend)
