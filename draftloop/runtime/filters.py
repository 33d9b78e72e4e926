"""Top-k, top-p and min-p: which tokens are left to choose from."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from draftloop.request import SamplingParameters
from draftloop.runtime.choices import EXCLUDED
from draftloop.runtime.cutting import NO_CUTS, Cuts, Scratch, cut_off, scratch


class Filters:
    """Of one session: cuts off by top-k, then top-p, then min-p; the likeliest token stays."""

    def __init__(self, parameters: SamplingParameters, vocabulary_size: int) -> None:
        self._parameters = parameters
        self._scratch: Scratch | None = None
        self._vocabulary_size = vocabulary_size
        self.cuts: Cuts = NO_CUTS
        if parameters.filtered:
            kept = parameters.top_k, parameters.top_p, parameters.min_p
            self.cuts = np.array((parameters.temperature, *kept), np.float64)

    def applied(self, logits: Tensor) -> Tensor:
        """Logits [rows, vocabulary] before the temperature; -inf over what is cut off after it."""
        if not len(self.cuts):
            return logits
        if not logits.is_cpu:
            return logits.masked_fill(_outside(logits, self._parameters), EXCLUDED)
        if self._scratch is None:
            self._scratch = scratch(self._vocabulary_size)
        kept = logits.clone(memory_format=torch.contiguous_format)
        cut_off(kept.numpy(), self.cuts, self._scratch)
        return kept


def _outside(logits: Tensor, parameters: SamplingParameters) -> Tensor:
    """Where what is cut off is, on a device that has operations of torch alone."""
    # From the maximum down, so that a tiny temperature cannot overflow to +inf.
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / parameters.temperature
    if 0 < parameters.top_k < logits.shape[-1]:
        least = logits.topk(parameters.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, EXCLUDED)
    if parameters.top_p < 1:
        ordered, order = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
        surplus = ordered.cumsum(dim=-1) - ordered >= parameters.top_p
        surplus[..., 0] = False
        logits = logits.masked_fill(surplus.scatter(-1, order, surplus), EXCLUDED)
    if parameters.min_p > 0:
        probabilities = logits.softmax(dim=-1)
        least = probabilities.amax(dim=-1, keepdim=True) * parameters.min_p
        logits = logits.masked_fill(probabilities < least, EXCLUDED)
    return logits == EXCLUDED
