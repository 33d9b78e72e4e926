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
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig

from draftloop.errors import StartupFailure
from draftloop.runtime import cpu_attention
from draftloop.runtime.attention_shapes import AttentionShapes
from draftloop.runtime.forward import Batch, Segment
from draftloop.runtime.kv_cache import KVCache, Mask
from draftloop.runtime.scoring import Scoring
from draftloop.runtime.trial import ADVICE, NotOurAttention

NAME = "draftloop"
LAYER_TYPES = {"full_attention", "sliding_attention"}
MOST_SCORES = 1 << 26  # at once where they are written out: 256 MiB, and a few times that beside
MOST_SCORES_OF_TORCH = 1 << 28  # by its own attention, which copies all keys for every part


def require_supported(config: PretrainedConfig) -> None:
    """Raises StartupFailure where the model has layers that a short text would not tell from ours.

    What else a model's attention may do beside is seen when its words are compared: see
    `reference`.
    """
    kinds = set(getattr(config.get_text_config(decoder=True), "layer_types", None) or ())
    if needs := sorted(kinds - LAYER_TYPES):
        raise StartupFailure(
            f"model: {config.model_type} needs {', '.join(needs)}, which is not supported; {ADVICE}"
        )


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    draftloop_batch: Batch | AttentionShapes | None = None,
    draftloop_cache: KVCache | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Stores the new keys and values and attends; returns ([1, tokens, heads, head_dim], None).

    `attention_mask` is what `mask_of` made, or None. For `AttentionShapes` it only tells them what
    would be stored, and returns zeros. Raises NotOurAttention for a mask of the layer's own.
    """
    if attention_mask is not None:
        sliding_window = _window_in(attention_mask)
    layer = module.layer_idx
    assert isinstance(layer, int)
    if isinstance(draftloop_batch, AttentionShapes):
        return draftloop_batch.observe(layer, query, key, value), None
    if draftloop_batch is None or draftloop_cache is None:
        raise NotOurAttention("this model does not pass its arguments on to its attention")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    sinks = None if s_aux is None else s_aux.flatten().float().contiguous()
    scoring, dims = Scoring(scale, softcap or None, sinks), value.shape[-1]
    kv_heads, room = key.shape[1], draftloop_cache.shape.head_dim
    query, key, value = (_widened(part, room) for part in (query, key, value))
    keys = draftloop_cache.keys[layer][:, :kv_heads]
    values = draftloop_cache.values[layer][:, :kv_heads]
    outputs = []
    for segment in draftloop_batch.segments:
        rows = slice(segment.start, segment.stop)
        stored = slice(segment.stored_from, segment.stored_to)
        keys[segment.slot, :, stored] = key[0, :, rows]
        values[segment.slot, :, stored] = value[0, :, rows]
        mine = query[:, :, rows]
        slot = keys[segment.slot], values[segment.slot]
        outputs.append(_segment_attention(mine, *slot, segment, sliding_window, scoring))
    attended = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return attended[None, ..., :dims].to(query.dtype), None


def mask_of(
    *_: Any, local_size: int | None = None, config: PretrainedConfig, **__: Any
) -> Tensor | None:
    """In a mask's place the layers' sliding window, where they have one: a number, as a tensor.

    What a row sees is known from its `Segment`, but some models tell the window by the mask alone
    (PhiMoE, Qwen2-MoE). Raises NotOurAttention where the size is another one, as of chunks.
    """
    if local_size is None:
        return None
    if local_size != getattr(config, "sliding_window", None):
        raise NotOurAttention("this model's attention is cut in another way than by a window")
    return torch.tensor(local_size)


def _window_in(mask: Tensor) -> int:
    """The window that `mask_of` has put in a mask's place."""
    if mask.ndim or mask.dtype != torch.int64:  # a layer's own, or with something added (Doge)
        raise NotOurAttention("this model's layers make masks of their own")
    return int(mask)


def _widened(part: Tensor, dims: int) -> Tensor:
    """With zeros, which change no product, up to the cache's dimensions.

    Keys may have more of them than values (DeepSeek), and one layer more than another (Gemma 4).
    """
    missing = dims - part.shape[-1]
    return functional.pad(part, (0, missing)) if missing else part


def _segment_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    segment: Segment,
    window: int | None,
    scoring: Scoring,
) -> Tensor:
    """[rows, heads, head_dim] for a query [1, heads, rows, head_dim] and the slot's whole room."""
    if cpu_attention.fits(query, keys):
        # Prompts too, where torch's blocked product would be up to a quarter faster: its bits
        # depend on the pieces in which a prompt is run, and those on the time that they take.
        bias = bias_of(segment, window)
        mine = query[0].float()
        return cpu_attention.attend(mine, keys, values, bias, segment.stored_to, scoring)
    keys, values = keys[:, : segment.stored_to], values[:, : segment.stored_to]
    mask = _windowed(segment, window)
    if not scoring.is_plain:
        shown = _causal(segment) if mask is None else mask
        seen = _on_device(shown, segment, window, query.device)
        return _explicitly(query[0].float(), keys.float(), values.float(), seen, scoring)
    masked = None if mask is None else _on_device(mask, segment, window, query.device)
    causal = segment.causal and window is None
    return _by_torch(query.to(keys.dtype), keys, values, masked, scoring.scale, causal=causal)


def _by_torch(
    query: Tensor, keys: Tensor, values: Tensor, seen: Tensor | None, scale: float, *, causal: bool
) -> Tensor:
    """Torch's own attention; seen: bool [rows, keys], None where all are, or `causal` ones.

    Beside a mask it writes all scores out on a GPU where keys have fewer heads than queries: a
    prompt's piece behind 32,000 tokens took 8 GiB and as much again.
    """
    _, heads, rows, _ = query.shape
    at_once = rows if seen is None else max(1, MOST_SCORES_OF_TORCH // (heads * keys.shape[1]))
    attended = [
        functional.scaled_dot_product_attention(
            query[:, :, start : start + at_once],
            keys[None],
            values[None],
            attn_mask=None if seen is None else seen[start : start + at_once],
            is_causal=causal,
            scale=scale,
            enable_gqa=heads != keys.shape[0],
        )
        for start in range(0, rows, at_once)
    ]
    joined = attended[0] if len(attended) == 1 else torch.cat(attended, 2)
    return joined[0].transpose(0, 1)


def _explicitly(
    query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scoring: Scoring
) -> Tensor:
    """The same for scores that torch's attention has no word for; seen: bool [rows, keys].

    As many rows at a time as MOST_SCORES allows: all of a prompt's piece took gigabytes.
    """
    heads, group = query.shape[0], query.shape[0] // keys.shape[0]
    keys, values = (part.repeat_interleave(group, 0) for part in (keys, values))
    rows = max(1, MOST_SCORES // (heads * keys.shape[1]))
    attended = [
        scoring.weights(part @ keys.mT, shown) @ values
        for part, shown in zip(query.split(rows, 1), seen.split(rows), strict=True)
    ]
    return torch.cat(attended, 1).transpose(0, 1)


def _on_device(mask: Mask, segment: Segment, window: int | None, device: torch.device) -> Tensor:
    """A segment's mask as a tensor; made once for all layers."""
    if window not in segment.masks_on_device:
        segment.masks_on_device[window] = torch.from_numpy(mask).to(device)
    return segment.masks_on_device[window]


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
AttentionMaskInterface.register(NAME, mask_of)
