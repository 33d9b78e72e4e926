"""Weights of eight bits or four: a half or a quarter of bfloat16's bytes, which few rows wait for.

What such a model says is not quite what the whole one says; drafting changes none of it, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D


class Format(NamedTuple):
    """How many bits weights have, and activations when they meet them.

    Sixteen of these are as good as all; of eight a CPU multiplies twice as many at a time.
    """

    weights: int
    activations: int

    @property
    def span(self) -> int:
        """Activations along k with a scale of their own; a group, where weights have groups."""
        return GROUP if self.weights == 4 else SPAN


FORMATS = {"int8": Format(8, 16), "w8a8": Format(8, 8), "w4a8": Format(4, 8)}  # by option
SPAN = 512
GROUP = 128  # weights of four bits along k with a scale of their own
MOST = 127  # of a weight of eight bits, and of an activation; -128 has no counterpart
LEAST_OF_FOUR, MOST_OF_FOUR = -8, 7
# Steps that a group's largest weight may take; what is beyond the range is cut off, and the others
# are rounded more finely. The scale with the least square error is taken: that of a checkpoint
# which had such weights, where its groups are the same and reach to an end of the range.
STEPS = (7.0, 7.5, 8.0, 8.5, 9.0, 9.5)
ROWS_AT_A_TIME = 256  # outputs that are quantized together, so that a cache holds them
MULTIPLE = 16  # of inputs: what the kernel of `cpu_linear` takes
HEADS = ("lm_head", "embed_out")  # as transformers names them
ROUTERS = ("gate", "router")  # of experts: a sliver of the bytes, and a choice hangs on them
SHARE = 1 / 128  # of a weight that is multiplied: float16 ends at 65,504


class Quantized(NamedTuple):
    """A matrix as integers.

    values: int8 [outputs, k], of eight bits from -127 to 127, of four from -8 to 7; scales: float32
    [outputs, groups], what the values are to be multiplied by: all of an output, or GROUP along k.
    """

    values: Tensor
    scales: Tensor
    format: Format

    @property
    def dense(self) -> Tensor:
        """The matrix that it stands for, float32 [outputs, k]."""
        depth, groups = self.values.shape[1], self.scales.shape[1]
        size = depth if groups == 1 else GROUP
        return self.values * self.scales.repeat_interleave(size, dim=1)[:, :depth]


def quantized(weight: Tensor, form: Format) -> Quantized:
    """Rounds a matrix [outputs, k] to the nearest."""
    if form.weights == 4:
        parts = [_in_groups(part) for part in weight.detach().split(ROWS_AT_A_TIME)]
        values, scales = (torch.cat(each) for each in zip(*parts, strict=True))
        return Quantized(values, scales, form)
    wide = weight.detach().float()
    scales = wide.abs().amax(dim=1, keepdim=True) / MOST  # the largest of an output becomes 127
    scales[scales == 0] = 1
    return Quantized((wide / scales).round_().to(torch.int8), scales, form)


def _in_groups(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Values of four bits and their scales."""
    depth = weight.shape[1]
    groups = functional.pad(weight.float(), (0, -depth % GROUP)).unflatten(1, (-1, GROUP))
    largest = groups.abs().amax(dim=2, keepdim=True)
    largest[largest == 0] = 1
    values, scales, least = groups, largest, torch.full_like(largest, torch.inf)
    for steps in STEPS:
        scale = largest / steps
        found = (groups / scale).round_().clamp_(LEAST_OF_FOUR, MOST_OF_FOUR)
        error = (found * scale - groups).square().sum(dim=2, keepdim=True)
        better = error < least
        values, scales = torch.where(better, found, values), torch.where(better, scale, scales)
        least = torch.minimum(error, least)
    return values.to(torch.int8).flatten(1)[:, :depth], scales.squeeze(2)


def rounded(x: Tensor, span: int = SPAN) -> Tensor:
    """Activations [..., k] as 8 bits hold them: the largest of a span becomes 127."""
    spans = functional.pad(x.float(), (0, -x.shape[-1] % span)).unflatten(-1, (-1, span))
    scales = spans.abs().amax(dim=-1, keepdim=True) / MOST
    spans = (spans / scales.clamp(min=torch.finfo(torch.float32).tiny)).round() * scales
    kept: Tensor = spans.flatten(-2)[..., : x.shape[-1]]
    return kept.to(x.dtype)


class QuantizedLinear(nn.Module):
    """A linear layer with weights of few bits, through torch, on any device.

    Takes [..., in_features] of any floating format and returns [..., out_features] of it.
    """

    def __init__(self, weight: Quantized, bias: Tensor | None, dtype: torch.dtype) -> None:
        """Keeps the tensors; `dtype` is the format of the layer that this one replaces."""
        super().__init__()
        self.out_features, self.in_features = weight.values.shape
        self.format = weight.format
        values = weight.values if self.format.weights == 8 else _in_pairs(weight.values)
        self.weight = nn.Parameter(values, requires_grad=False)
        self.register_buffer("scales", weight.scales)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.dtype = dtype

    @property
    def matrix(self) -> Quantized:
        """What it multiplies by."""
        values = self.weight if self.format.weights == 8 else _apart(self.weight)
        return Quantized(values, self.get_buffer("scales"), self.format)

    def forward(self, x: Tensor) -> Tensor:
        matrix = self.matrix
        x = rounded(x, self.format.span) if self.format.activations == 8 else x
        if self.format.weights == 8:
            product = functional.linear(x, matrix.values.to(x.dtype) * SHARE).float()
            product = product * (matrix.scales[:, 0] / SHARE)
        else:
            product = functional.linear(x, matrix.dense.to(x.dtype)).float()
        return (product if self.bias is None else product + self.bias).to(x.dtype)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.dtype}"


def _in_pairs(values: Tensor) -> Tensor:
    """Two values of four bits in a byte: int8 [outputs, k] to [outputs, k / 2]."""
    low, high = values[:, 0::2], values[:, 1::2]
    return (low & 15) | (high << 4)


def _apart(pairs: Tensor) -> Tensor:
    """What `_in_pairs` was made of."""
    return torch.stack([(pairs << 4) >> 4, pairs >> 4], dim=2).flatten(1)


Linear = nn.Linear | QuantizedLinear


def stacked(layers: Sequence[Linear]) -> Linear:
    """A layer whose outputs are those of layers of one kind, one after the other.

    Of these either all have a bias or none.
    """
    biases = [cast(Tensor, layer.bias) for layer in layers if layer.bias is not None]
    bias = torch.cat(biases) if biases else None
    if isinstance(layers[0], QuantizedLinear):
        matrices = [layer.matrix for layer in cast(Sequence[QuantizedLinear], layers)]
        values, scales, forms = zip(*matrices, strict=True)
        matrix = Quantized(torch.cat(values), torch.cat(scales), forms[0])
        return QuantizedLinear(matrix, bias, layers[0].dtype)
    weight = torch.cat([layer.weight for layer in layers])
    one = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    one.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        one.bias = nn.Parameter(bias, requires_grad=False)
    return one


def quantize(model: nn.Module, form: Format) -> None:
    """Replaces, in place, the linear layers of `model` whose inputs are a multiple of 16.

    And transformers' `Conv1D`s. Routers stay whole, and so does an embedding that shares its matrix
    with the head. A head has eight bits at least: every choice of a token hangs on it.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in ROUTERS:
                continue
            layer = _quantized(child, FORMATS["w8a8"] if _is_small_head(name, form) else form)
            if layer is not None:
                setattr(parent, name, layer)


def _is_small_head(name: str, form: Format) -> bool:
    return name in HEADS and form.weights < 8


def whole_parts(layer: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Matrix [outputs, k] and bias of a whole layer that only multiplies; None of any other."""
    if type(layer) is nn.Linear:
        return layer.weight, layer.bias
    if type(layer) is Conv1D:
        return cast(Tensor, layer.weight).T, cast(Tensor, layer.bias)
    return None


def _quantized(layer: nn.Module, form: Format) -> QuantizedLinear | None:
    parts = whole_parts(layer)
    if parts is None or parts[0].shape[1] % MULTIPLE:
        return None
    weight, bias = parts
    return QuantizedLinear(quantized(weight, form), bias, weight.dtype)
