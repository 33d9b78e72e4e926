"""Rotary positions whose angles depend on nothing but the position."""

from __future__ import annotations

from torch import nn

# Of transformers: two sets of angles, of which each forward takes one by its longest position.
CHANGING = "longrope"
FIXED = "longrope, fixed"


def fix(network: nn.Module) -> None:
    """Keeps those angles that the last forward took (LongRoPE, arXiv 2402.13753).

    Else a session would say something else as soon as a longer one shares its forward, and so would
    every session once it is longer than the model's first training. vLLM and llama.cpp choose by
    the longest context that they serve, too.
    """
    for module in network.modules():
        kind = getattr(module, "rope_type", None)
        if kind == CHANGING:
            module.rope_type = FIXED  # type: ignore[assignment]
        elif isinstance(kind, dict):
            module.rope_type = {  # type: ignore[assignment]
                layers: FIXED if one == CHANGING else one for layers, one in kind.items()
            }
