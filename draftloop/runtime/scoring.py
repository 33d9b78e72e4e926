"""How a model computes attention weights: scale, soft cap and sinks besides the softmax."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Scoring:
    """A score is a product times `scale`; `cap` bounds it by cap * tanh(score / cap).

    `sinks`: float32 [heads], an extra score without a key, so that the weights of keys sum to less
    than 1.
    """

    scale: float
    cap: float | None = None
    sinks: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether weights are simply a softmax of scaled products."""
        return self.cap is None and self.sinks is None

    def weights(self, products: Tensor, seen: Tensor) -> Tensor:
        """The weights, float32 [heads, rows, keys], of these products; seen: bool [rows, keys]."""
        scores = products * self.scale
        if self.cap is not None:
            scores = self.cap * torch.tanh(scores / self.cap)
        scores = scores.masked_fill(~seen, float("-inf"))
        if self.sinks is None:
            return scores.softmax(-1)
        last = self.sinks[:, None, None].expand(-1, scores.shape[1], 1)
        return torch.cat([scores, last], dim=-1).softmax(-1)[..., :-1]
