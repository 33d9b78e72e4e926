"""Makes rotary angles (RoPE) depend on the position only."""

from __future__ import annotations

import torch
from torch import nn

# Transformers' type with two sets of angles; each forward uses one, by its longest position.
CHANGING = "longrope"
FIXED = "longrope, fixed"
SHORT, LONG = "short texts", ""  # the usual angles have no name


def fix(network: nn.Module) -> str:
    """Fixes the angles that the last forward used (LongRoPE, arXiv 2402.13753).

    Otherwise a session's outputs would change when a longer session shares its forward, or when it
    grows beyond the length of the model's original training. vLLM and llama.cpp also choose by the
    longest context served. Returns SHORT if the angles for short texts were in use.
    """
    kept = set()
    for module in network.modules():
        kind = getattr(module, "rope_type", None)
        if kind == CHANGING:
            module.rope_type = FIXED  # type: ignore[assignment]
            kept.add(_taken(module))
        elif isinstance(kind, dict):
            module.rope_type = {  # type: ignore[assignment]
                layers: FIXED if one == CHANGING else one for layers, one in kind.items()
            }
            kept |= {_taken(module, f"{each}_") for each, one in kind.items() if one == CHANGING}
    return SHORT if SHORT in kept else LONG


def _taken(module: nn.Module, prefix: str = "") -> str:
    """Which of its two sets transformers has in use."""
    now, short = (getattr(module, f"{prefix}{name}") for name in ("inv_freq", "original_inv_freq"))
    return SHORT if torch.equal(now, short.to(now.device)) else LONG
