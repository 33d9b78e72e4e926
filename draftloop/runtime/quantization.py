"""Weights of eight bits: half of bfloat16's bytes, and a forward with few rows waits for bytes.

What such a model says is not quite what the whole one says; drafting changes none of it, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

# How many bits activations have when they meet weights of eight, by the option's name: as good as
# all, or as few as the weights, of which a CPU multiplies twice as many at a time.
ACTIVATION_BITS = {"int8": 16, "w8a8": 8}
SPAN = 512  # activations along k with a scale of their own
MOST = 127  # of a weight; -128 has no counterpart
MULTIPLE = 16  # of inputs: what the kernel of `cpu_linear` takes
ROUTERS = ("gate", "router")  # of experts: a sliver of the bytes, and a choice hangs on them
SHARE = 1 / 128  # of a weight that is multiplied: float16 ends at 65,504


class Quantized(NamedTuple):
    """A matrix as integers.

    values: int8 [outputs, k], from -127 to 127; scales: float32 [outputs], what an output's values
    are to be multiplied by; bits: to which activations are rounded for it, 16 or 8.
    """

    values: Tensor
    scales: Tensor
    bits: int = 16


def quantized(weight: Tensor, bits: int = 16) -> Quantized:
    """Rounds a matrix [outputs, k] to the nearest; the largest value of an output becomes 127."""
    wide = weight.detach().float()
    scales = wide.abs().amax(dim=1) / MOST
    scales[scales == 0] = 1
    return Quantized((wide / scales[:, None]).round_().to(torch.int8), scales, bits)


def rounded(x: Tensor) -> Tensor:
    """Activations [..., k] as 8 bits hold them: the largest of a span becomes 127."""
    spans = functional.pad(x.float(), (0, -x.shape[-1] % SPAN)).unflatten(-1, (-1, SPAN))
    scales = spans.abs().amax(dim=-1, keepdim=True) / MOST
    spans = (spans / scales.clamp(min=torch.finfo(torch.float32).tiny)).round() * scales
    kept: Tensor = spans.flatten(-2)[..., : x.shape[-1]]
    return kept.to(x.dtype)


class Int8Linear(nn.Module):
    """A linear layer with weights of eight bits, through torch, on any device.

    Takes [..., in_features] of any floating format and returns [..., out_features] of it.
    """

    def __init__(self, weight: Quantized, bias: Tensor | None, dtype: torch.dtype) -> None:
        """Keeps the tensors; `dtype` is the format of the layer that this one replaces."""
        super().__init__()
        self.out_features, self.in_features = weight.values.shape
        self.weight = nn.Parameter(weight.values, requires_grad=False)
        self.register_buffer("scales", weight.scales)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.dtype, self._bits = dtype, weight.bits

    @property
    def matrix(self) -> Quantized:
        """What it multiplies by."""
        return Quantized(self.weight, self.get_buffer("scales"), self._bits)

    def forward(self, x: Tensor) -> Tensor:
        values, scales, bits = self.matrix
        x = rounded(x) if bits == 8 else x
        product = functional.linear(x, values.to(x.dtype) * SHARE).float() * (scales / SHARE)
        return (product if self.bias is None else product + self.bias).to(x.dtype)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.dtype}"


Linear = nn.Linear | Int8Linear


def stacked(layers: Sequence[Linear]) -> Linear:
    """A layer whose outputs are those of layers of one kind, one after the other.

    Of these either all have a bias or none.
    """
    biases = [cast(Tensor, layer.bias) for layer in layers if layer.bias is not None]
    bias = torch.cat(biases) if biases else None
    if isinstance(layers[0], Int8Linear):
        matrices = [layer.matrix for layer in cast(Sequence[Int8Linear], layers)]
        values, scales, bits = zip(*matrices, strict=True)
        matrix = Quantized(torch.cat(values), torch.cat(scales), bits[0])
        return Int8Linear(matrix, bias, layers[0].dtype)
    weight = torch.cat([layer.weight for layer in layers])
    one = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    one.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        one.bias = nn.Parameter(bias, requires_grad=False)
    return one


def quantize(model: nn.Module, bits: int) -> None:
    """Replaces, in place, the linear layers of `model` whose inputs are a multiple of 16.

    `bits`: of activations. And transformers' `Conv1D`s. Routers stay whole, and so does an
    embedding that shares its matrix with the head.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name not in ROUTERS and (layer := _quantized(child, bits)) is not None:
                setattr(parent, name, layer)


def whole_parts(layer: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Matrix [outputs, k] and bias of a whole layer that only multiplies; None of any other."""
    if type(layer) is nn.Linear:
        return layer.weight, layer.bias
    if type(layer) is Conv1D:
        return cast(Tensor, layer.weight).T, cast(Tensor, layer.bias)
    return None


def _quantized(layer: nn.Module, bits: int) -> Int8Linear | None:
    parts = whole_parts(layer)
    if parts is None or parts[0].shape[1] % MULTIPLE:
        return None
    weight, bias = parts
    return Int8Linear(quantized(weight, bits), bias, weight.dtype)
