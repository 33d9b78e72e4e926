"""Quantization to 8 or 4 bits: half or a quarter of the bytes that a forward of few rows waits for.

The output may differ from the original model's; drafts do not change it, as always.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D


class Format(NamedTuple):
    """Bits of the weights, and of the activations that they are multiplied by.

    Activations of 16 bits are not rounded further; of 8 bits, a CPU multiplies twice as many at a
    time.
    """

    weights: int
    activations: int

    @property
    def span(self) -> int:
        """Number of activations along k that share a scale: GROUP if weights have groups."""
        return GROUP if self.weights == 4 else SPAN


FORMATS = {"int8": Format(8, 16), "w8a8": Format(8, 8), "w4a8": Format(4, 8)}  # by option
SPAN = 512
GROUP = 128  # weights of four bits along k that share a scale
INT8_MAX = 127  # maximum of an 8-bit weight or activation; -128 has no positive counterpart
INT4_MIN, INT4_MAX = -8, 7
# Candidates for the number of steps that a group's largest weight gets. With more steps than the
# range has, it is clipped and the others are rounded more finely. The scale with the least squared
# error is taken. For a checkpoint that was quantized with the same groups, and whose groups reach
# an end of the range, that is the checkpoint's own scale.
STEPS = (7.0, 7.5, 8.0, 8.5, 9.0, 9.5)
ROWS_AT_A_TIME = 256  # outputs that are quantized together, so that they fit a cache
MULTIPLE = 16  # the inputs must be a multiple of it, for the kernel of `cpu_linear`
HEADS = ("lm_head", "embed_out")  # transformers' names
# Of experts: few bytes, but the choice of experts depends on them.
ROUTERS = frozenset({"gate", "router"})
SHARE = 1 / 128  # weights are multiplied by it, as float16 ends at 65,504


class Quantized(NamedTuple):
    """A matrix as integers.

    values: int8 [outputs, k], from -127 to 127 for 8 bits, from -8 to 7 for 4. scales: float32
    [outputs, groups], the factors of the values: one per output, or one per GROUP along k.
    """

    values: Tensor
    scales: Tensor
    format: Format

    @property
    def dense(self) -> Tensor:
        """The dequantized matrix, float32 [outputs, k]."""
        depth, groups = self.values.shape[1], self.scales.shape[1]
        size = depth if groups == 1 else GROUP
        return self.values * self.scales.repeat_interleave(size, dim=1)[:, :depth]


def quantized(weight: Tensor, form: Format) -> Quantized:
    """Quantizes a matrix [outputs, k], rounding to nearest."""
    if form.weights == 4:
        parts = [_quantize_groups(part) for part in weight.detach().split(ROWS_AT_A_TIME)]
        values, scales = (torch.cat(each) for each in zip(*parts, strict=True))
        return Quantized(values, scales, form)
    wide = weight.detach().float()
    scales = wide.abs().amax(dim=1, keepdim=True) / INT8_MAX  # its largest weight becomes 127
    scales[scales == 0] = 1
    return Quantized((wide / scales).round_().to(torch.int8), scales, form)


def _quantize_groups(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The 4-bit values of a matrix, and their scales."""
    depth = weight.shape[1]
    groups = functional.pad(weight.float(), (0, -depth % GROUP)).unflatten(1, (-1, GROUP))
    largest = groups.abs().amax(dim=2, keepdim=True)
    largest[largest == 0] = 1
    values, scales, least = groups, largest, torch.full_like(largest, torch.inf)
    for steps in STEPS:
        scale = largest / steps
        found = (groups / scale).round_().clamp_(INT4_MIN, INT4_MAX)
        error = (found * scale - groups).square().sum(dim=2, keepdim=True)
        better = error < least
        values, scales = torch.where(better, found, values), torch.where(better, scale, scales)
        least = torch.minimum(error, least)
    return values.to(torch.int8).flatten(1)[:, :depth], scales.squeeze(2)


def rounded(x: Tensor, span: int = SPAN) -> Tensor:
    """Activations [..., k] rounded as by 8 bits; the largest of each span becomes 127."""
    spans = functional.pad(x.float(), (0, -x.shape[-1] % span)).unflatten(-1, (-1, span))
    scales = spans.abs().amax(dim=-1, keepdim=True) / INT8_MAX
    spans = (spans / scales.clamp(min=torch.finfo(torch.float32).tiny)).round() * scales
    kept: Tensor = spans.flatten(-2)[..., : x.shape[-1]]
    return kept.to(x.dtype)


class QuantizedLinear(nn.Module):
    """A linear layer with quantized weights, by torch operations, on any device.

    Takes [..., in_features] of any floating-point dtype; returns [..., out_features] of that dtype.
    """

    def __init__(self, weight: Quantized, bias: Tensor | None, dtype: torch.dtype) -> None:
        """Keeps the tensors; `dtype` is that of the layer that this one replaces."""
        super().__init__()
        self.out_features, self.in_features = weight.values.shape
        self.format = weight.format
        values = weight.values if self.format.weights == 8 else _pack_pairs(weight.values)
        self.weight = nn.Parameter(values, requires_grad=False)
        self.register_buffer("scales", weight.scales)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.dtype = dtype

    @property
    def matrix(self) -> Quantized:
        """The quantized matrix."""
        values = self.weight if self.format.weights == 8 else _unpack_pairs(self.weight)
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


def _pack_pairs(values: Tensor) -> Tensor:
    """Packs two 4-bit values per byte: int8 [outputs, k] to [outputs, k / 2]."""
    low, high = values[:, 0::2], values[:, 1::2]
    return (low & 15) | (high << 4)


def _unpack_pairs(pairs: Tensor) -> Tensor:
    """The inverse of `_pack_pairs`."""
    return torch.stack([(pairs << 4) >> 4, pairs >> 4], dim=2).flatten(1)


Linear = nn.Linear | QuantizedLinear


def stacked(layers: Sequence[Linear]) -> Linear:
    """Joins layers of one kind to one layer with their outputs concatenated.

    Either all of them have a bias or none.
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
    """Quantizes, in place, linear layers and `Conv1D`s whose inputs are a multiple of MULTIPLE.

    Routers stay unquantized, with all layers in them, as does an embedding that shares its matrix
    with the head. The head gets at least 8 bits, since every choice of a token depends on it.
    """
    for path, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            if not ROUTERS.isdisjoint((*path.split("."), name)):
                continue
            layer = _quantized(child, FORMATS["w8a8"] if _is_small_head(name, form) else form)
            if layer is not None:
                setattr(parent, name, layer)


def _is_small_head(name: str, form: Format) -> bool:
    return name in HEADS and form.weights < 8


def whole_parts(layer: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Matrix [outputs, k] and bias of an unquantized plain linear layer; None for others."""
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
