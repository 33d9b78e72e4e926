"""Rotary positions whose angles depend on nothing but the position."""

from __future__ import annotations

import torch
from torch import nn

# Of transformers: two sets of angles, of which each forward takes one by its longest position.
CHANGING = "longrope"
FIXED = "longrope, fixed"
SHORT, LONG = "short texts", ""  # the usual ones have no name


def fix(network: nn.Module) -> str:
    """Keeps those angles that the last forward took (LongRoPE, arXiv 2402.13753).

    Else a session would say something else as soon as a longer one shares its forward, and so would
    every session once it is longer than the model's first training. vLLM and llama.cpp choose by
    the longest context that they serve, too. Returns SHORT where those for short texts were taken.
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
    """By transformers, of its two sets."""
    now, short = (getattr(module, f"{prefix}{name}") for name in ("inv_freq", "original_inv_freq"))
    return SHORT if torch.equal(now, short.to(now.device)) else LONG
