"""Causal attention for training on a CPU, registered in transformers' attention interface.

torch's own takes nearly half of a training step there, twice as long as this one. For a window of
1024 tokens and four heads on a core with AVX512-BF16, forward and backward take 30 ms per layer
with torch and 16 ms here. Queries are processed in blocks, each against the keys up to the block's
end. So a third of the work, which a mask would throw away, is never done, and every product is one
of torch's fast matrix multiplications.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

NAME = "models_blocked"
BLOCK = 256  # queries at a time


class BlockedCausal(torch.autograd.Function):
    """softmax(query key^T / sqrt(D)) value under a causal mask; all [B, heads, L, D].

    Scores are float32 whatever the type of the input: a confident head has large scores, and
    bfloat16 has no number between 298 and 300. Keeps each block's probabilities for the backward
    pass, L^2 / 2 per head.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attended values [B, heads, L, D]."""
        query = query.float() * query.shape[-1] ** -0.5
        wide, value = key.float().contiguous(), value.contiguous()
        attended, kept = torch.empty_like(value), []
        for begin in range(0, query.shape[-2], BLOCK):
            block = query[..., begin : begin + BLOCK, :]
            end = begin + block.shape[-2]
            scores = block @ wide[..., :end, :].transpose(-1, -2)
            scores[..., begin:] += torch.full_like(scores[..., begin:], -torch.inf).triu(1)
            probabilities = torch.softmax(scores, -1).to(value.dtype)
            attended[..., begin:end, :] = probabilities @ value[..., :end, :]
            kept.append(probabilities)
        ctx.save_for_backward(query.to(value.dtype), wide.to(value.dtype), value, attended, *kept)
        return attended

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and value."""
        query, key, value, attended, *kept = ctx.saved_tensors
        wanted, wide = gradients[0].contiguous(), value.float()
        # Gradient of softmax: a row's gradient minus its mean under the row's probabilities.
        level = (wanted * attended).sum(-1, keepdim=True, dtype=torch.float32)
        to_query, to_key, to_value = (torch.zeros_like(part) for part in (query, key, value))
        for number, probabilities in enumerate(kept):
            rows = slice(number * BLOCK, number * BLOCK + probabilities.shape[-2])
            seen, wanted_rows = slice(0, rows.stop), wanted[..., rows, :]
            to_value[..., seen, :] += probabilities.transpose(-1, -2) @ wanted_rows
            wide_scores = wanted_rows.float() @ wide[..., seen, :].transpose(-1, -2)
            wide_scores.sub_(level[..., rows, :]).mul_(probabilities)
            scores = wide_scores.to(query.dtype)
            to_query[..., rows, :] = scores @ key[..., seen, :]
            to_key[..., seen, :] += scores.transpose(-1, -2) @ query[..., rows, :]
        return to_query * query.shape[-1] ** -0.5, to_key, to_value


def attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    """Called by transformers: returns ([B, L, heads, D], None); positions are a whole window's."""
    # Under autocast, rotated queries and keys are float32, values bfloat16.
    with torch.autocast(query.device.type, enabled=False):
        attended: Tensor = BlockedCausal.apply(query, key, value)
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
