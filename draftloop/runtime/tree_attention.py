"""Attention over our cache, registered in transformers' attention interface.

All sessions' new tokens form one sequence, [1, heads, tokens, head_dim]. Each session's segment
attends to its own slot, so its result does not depend on which sessions share the forward.
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
from draftloop.runtime.trial import ADVICE, UnsupportedAttention

NAME = "draftloop"
LAYER_TYPES = {"full_attention", "sliding_attention"}
# Maximum scores computed at a time: in `_explicit_attention`, 256 MiB and a few times that for
# copies; in torch's attention, which copies all keys for every part.
MAX_SCORES = 1 << 26
MAX_SCORES_OF_TORCH = 1 << 28


def require_supported(config: PretrainedConfig) -> None:
    """Raises StartupFailure for layer types that differ from ours only on longer texts.

    Other differences in attention are found by comparing logits: see `reference`.
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

    `attention_mask` is the result of `mask_of`, or None. With `AttentionShapes`, it only records
    the shapes and returns zeros. Raises UnsupportedAttention if the layer makes its own mask.
    """
    if attention_mask is not None:
        sliding_window = _window_in(attention_mask)
    layer = module.layer_idx
    assert isinstance(layer, int)
    if isinstance(draftloop_batch, AttentionShapes):
        return draftloop_batch.observe(layer, query, key, value), None
    if draftloop_batch is None or draftloop_cache is None:
        raise UnsupportedAttention("this model does not pass its arguments on to its attention")
    if sliding_window is not None and sliding_window >= draftloop_cache.shape.rows:
        sliding_window = None  # it hides nothing
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
        segment_query = query[:, :, rows]
        slot = keys[segment.slot], values[segment.slot]
        outputs.append(_segment_attention(segment_query, *slot, segment, sliding_window, scoring))
    attended = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return attended[None, ..., :dims].to(query.dtype), None


def mask_of(
    *_: Any, local_size: int | None = None, config: PretrainedConfig, **__: Any
) -> Tensor | None:
    """Returns the layer's sliding window, as a scalar tensor, in place of a mask; else None.

    Visibility is known from the `Segment`, but some models state the window only through the mask
    (PhiMoE, Qwen2-MoE). Raises UnsupportedAttention if the size is not the window's, as for chunked
    attention.
    """
    if local_size is None:
        return None
    if local_size != getattr(config, "sliding_window", None):
        raise UnsupportedAttention("this model's attention is cut in another way than by a window")
    return torch.tensor(local_size)


def _window_in(mask: Tensor) -> int:
    """The window that `mask_of` returned in place of a mask."""
    if mask.ndim or mask.dtype != torch.int64:  # the layer's own mask, or a changed one (Doge)
        raise UnsupportedAttention("this model's layers make masks of their own")
    return int(mask)


def _widened(part: Tensor, dims: int) -> Tensor:
    """Pads with zeros, which change no product, to the cache's head dimension.

    Keys may have more dimensions than values (DeepSeek), and layers may differ (Gemma 4).
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
    """[rows, heads, head_dim] for a query [1, heads, rows, head_dim] and all rows of a slot."""
    if cpu_attention.fits(query, keys):
        # Prompts too, although torch's blocked product would be up to a quarter faster: its bits
        # depend on how a prompt is chunked, and that depends on timing.
        bias = bias_of(segment, window)
        queries = query[0].float()
        return cpu_attention.attend(queries, keys, values, bias, segment.stored_to, scoring)
    keys, values = keys[:, : segment.stored_to], values[:, : segment.stored_to]
    causal = segment.causal and window is None
    if not scoring.is_plain:
        seen = _mask_on_device(segment, window, query.device)
        return _explicit_attention(query[0].float(), keys.float(), values.float(), seen, scoring)
    sees_all = segment.mask is None and window is None and segment.stop - segment.start == 1
    masked = None if causal or sees_all else _mask_on_device(segment, window, query.device)
    return _torch_attention(
        query.to(keys.dtype), keys, values, masked, scoring.scale, causal=causal
    )


def _torch_attention(
    query: Tensor, keys: Tensor, values: Tensor, seen: Tensor | None, scale: float, *, causal: bool
) -> Tensor:
    """Torch's own attention; seen: bool [rows, keys], or None for all keys, or `causal` ones.

    Runs in parts, because with a mask and fewer key heads than query heads, torch materializes all
    scores on a GPU: a chunk of a prompt after 32,000 tokens took twice 8 GiB.
    """
    _, heads, rows, _ = query.shape
    at_once = rows if seen is None else max(1, MAX_SCORES_OF_TORCH // (heads * keys.shape[1]))
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


def _explicit_attention(
    query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scoring: Scoring
) -> Tensor:
    """Attention with scores that torch's attention does not support; seen: bool [rows, keys].

    Runs as many rows at a time as MAX_SCORES allows: a whole chunk of a prompt took gigabytes.
    """
    heads, group = query.shape[0], query.shape[0] // keys.shape[0]
    keys, values = (part.repeat_interleave(group, 0) for part in (keys, values))
    rows = max(1, MAX_SCORES // (heads * keys.shape[1]))
    attended = [
        scoring.weights(part @ keys.mT, shown) @ values
        for part, shown in zip(query.split(rows, 1), seen.split(rows), strict=True)
    ]
    return torch.cat(attended, 1).transpose(0, 1)


def _mask_on_device(segment: Segment, window: int | None, device: torch.device) -> Tensor:
    """A segment's mask as a tensor; computed once for all layers."""
    if window not in segment.masks_on_device:
        mask = _windowed(segment, window)
        mask = _causal(segment) if mask is None else mask
        segment.masks_on_device[window] = torch.from_numpy(mask).to(device)
    return segment.masks_on_device[window]


def bias_of(segment: Segment, window: int | None) -> cpu_attention.Bias:
    """A segment's attention bias for `cpu_attention`; computed once for all layers."""
    if window not in segment.biases:
        mask = _windowed(segment, window)
        if mask is None and segment.stop - segment.start > 1:
            mask = _causal(segment)
        segment.biases[window] = cpu_attention.bias_of(mask, segment.stored_to)
    return segment.biases[window]


def _causal(segment: Segment) -> Mask:
    """Causal mask: each row attends to the rows stored before it, and itself."""
    rows = segment.stop - segment.start
    return np.tri(rows, segment.stored_to, k=segment.stored_from, dtype=np.bool_)


def _windowed(segment: Segment, window: int | None) -> Mask | None:
    """A segment's mask without keys that lie `window` or more positions back."""
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
