"""Random linear layers, and exact comparison of results."""

from __future__ import annotations

import torch
from torch import Tensor


def random_layer(
    outputs: int, depth: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor]:
    """A matrix [outputs, depth] and a bias."""
    return torch.randn(outputs, depth).to(dtype), torch.randn(outputs).to(dtype)


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are equal bit by bit; NaN may be equal to NaN."""
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))
