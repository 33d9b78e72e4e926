"""Top-k, top-p and min-p: which tokens may be sampled."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from draftloop.request import SamplingParameters
from draftloop.runtime.choices import EXCLUDED
from draftloop.runtime.cutting import NO_CUTS, Cuts, Scratch, apply_cuts, scratch

WHOLE = 2.0**40  # the weight of the likeliest token, as an integer


class Filters:
    """The filters of one session: top-k, then top-p, then min-p; the likeliest token stays."""

    def __init__(self, parameters: SamplingParameters, vocabulary_size: int) -> None:
        self._parameters = parameters
        self._scratch: Scratch | None = None
        self._vocabulary_size = vocabulary_size
        self.cuts: Cuts = NO_CUTS
        if parameters.filtered:
            kept = parameters.top_k, parameters.top_p, parameters.min_p
            self.cuts = np.array((parameters.temperature, *kept), np.float64)

    def applied(self, logits: Tensor) -> Tensor:
        """The logits [rows, vocabulary], unscaled, with -inf for tokens excluded at temperature."""
        if not len(self.cuts):
            return logits
        if not logits.is_cpu:
            return logits.masked_fill(_outside(logits, self._parameters), EXCLUDED)
        if self._scratch is None:
            self._scratch = scratch(self._vocabulary_size)
        kept = logits.clone(memory_format=torch.contiguous_format)
        apply_cuts(kept.numpy(), self.cuts, self._scratch)
        return kept


def _outside(logits: Tensor, parameters: SamplingParameters) -> Tensor:
    """bool [rows, vocabulary]: the tokens to exclude; by torch operations, for any device.

    Sums are over integers, because torch adds floating-point numbers in an order that depends on
    the number of rows, and a row's result must not depend on the others.
    """
    # Relative to the maximum, so that a tiny temperature cannot overflow to +inf.
    top = logits.amax(dim=-1, keepdim=True)
    logits = (logits - top) / parameters.temperature
    if 0 < parameters.top_k < logits.shape[-1]:
        least = logits.topk(parameters.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, EXCLUDED)
    if parameters.top_p < 1:
        weights = (logits.double().exp() * WHOLE).nan_to_num().round().long()
        order = logits.sort(dim=-1, descending=True, stable=True).indices
        ordered = weights.gather(-1, order)
        before = ordered.cumsum(dim=-1) - ordered
        surplus = before.double() >= parameters.top_p * ordered.sum(dim=-1, keepdim=True).double()
        surplus[..., 0] = False
        logits = logits.masked_fill(surplus.scatter(-1, order, surplus), EXCLUDED)
    if parameters.min_p > 0:
        logits = logits.masked_fill(logits.double().exp() < parameters.min_p, EXCLUDED)
    return (logits == EXCLUDED) & top.isfinite()
