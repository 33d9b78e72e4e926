"""How a model's attention makes weights of products, beyond the softmax."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Scoring:
    """`scale` times a product is a score; `cap` bounds it: cap * tanh(score / cap).

    `sinks`: float32 [heads], a score of no key, so that the weights of keys sum to less than 1.
    """

    scale: float
    cap: float | None = None
    sinks: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether weights are a softmax of scaled products."""
        return self.cap is None and self.sinks is None

    def weights(self, products: Tensor, seen: Tensor) -> Tensor:
        """float32 [heads, rows, keys] of as many products; `seen`: bool [rows, keys]."""
        scores = products * self.scale
        if self.cap is not None:
            scores = self.cap * torch.tanh(scores / self.cap)
        scores = scores.masked_fill(~seen, float("-inf"))
        if self.sinks is None:
            return scores.softmax(-1)
        last = self.sinks[:, None, None].expand(-1, scores.shape[1], 1)
        return torch.cat([scores, last], dim=-1).softmax(-1)[..., :-1]
