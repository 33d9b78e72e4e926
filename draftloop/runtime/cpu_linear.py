"""Batch-invariant linear layers for CPUs; weights are read once for a block of rows.

Verifying a draft multiplies every weight matrix by 2 to 32 rows. On a CPU without native bfloat16
arithmetic, torch converts the weights again for each such call, so eight rows cost four times as
much as one, although both read the same bytes. This kernel reads each weight once, converts it in a
register and multiplies it by all rows in the other registers.

Batch invariance matters as much. Every output is the chain

    sum = bias; for k = 0, 1, ..: sum = fma(weight[n, k], x[row, k], sum)      (float32)

rounded once at the end, whatever the number of rows, their place in the batch, the number of
threads or the width of the vectors. So a row verified in a batch is bit-identical to the same row
decoded alone, in bfloat16 as in float32. On CPUs with tiles (AMX) or dot products of pairs
(AVX512-BF16), bfloat16 is multiplied by these: 32 or 2 values of k at a time are added in the
processor's order, and all else holds as well. Weights of 8 or 4 bits are multiplied by integers,
with exact sums.

The kernel is LLVM IR, which `cpu_linear_kernel` generates and compiles at first use (one second);
users need no C compiler. Its threads are those of torch's own OpenMP runtime, so that two pools
never compete for the cores. See docs/decisions/0002-cpu-linear.md, 0010, 0011 and 0022.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from draftloop.runtime.cpu_linear_way import WORD_BITS
from draftloop.runtime.huge_pages import WEIGHTS
from draftloop.runtime.quantization import (
    MULTIPLE,
    Quantized,
    QuantizedLinear,
    whole_parts,
)

try:
    from draftloop.runtime import cpu_linear_kernel as kernel
    from draftloop.runtime.team import bind_openmp
    from draftloop.runtime.vector_unit import vector_unit
except ImportError:  # no llvmlite: torch's own kernels stay in use
    UNIT = None
else:
    UNIT = vector_unit() if bind_openmp() else None

FORMATS = (torch.float32, torch.bfloat16)  # of activations
# k must be a multiple of this: the values in a word, and for integers in a vector.
MULTIPLES = {torch.float32: 1, torch.bfloat16: 2, torch.int8: MULTIPLE}
LAYERS = (nn.Linear, Conv1D, QuantizedLinear)


def packable(weight: Tensor) -> bool:
    """Whether `PackedLinear` can pack this matrix on this machine."""
    multiple = MULTIPLES.get(weight.dtype)
    return (
        UNIT is not None
        and weight.dim() == 2
        and weight.is_cpu
        and multiple is not None
        and weight.shape[1] % multiple == 0
    )


def pack(
    weight: Tensor, lanes: int, strip: int, bits: int = 0, *, in_bytes: bool = False
) -> Tensor:
    """Packs [outputs, k] in panels: [outputs / lanes, words along k, lanes, elements of a word].

    A word has 32 bits. `bits`: of integer weights. For products of bytes, integers are made
    unsigned by adding half of their range, and are in order: those of 4 bits, the first four in the
    lower halves of a word's bytes, and with `in_bytes` those of 8. Others of 8 bits are arranged so
    that pairs of 16 bits are in order, the first of each pair in the word's lower half.
    Outputs are padded with zeros to a multiple of `strip`.
    """
    outputs, depth = weight.shape
    values = WORD_BITS // (bits or 8 * weight.element_size())
    weight = functional.pad(weight, (0, 0, 0, -outputs % strip))
    panels = weight.reshape(-1, lanes, depth // values, values).permute(0, 2, 1, 3)
    if bits == 8:
        panels = panels ^ -128 if in_bytes else panels[..., [0, 2, 1, 3]]
    elif bits == 4:
        panels = panels + 8
        panels = panels[..., :4] | (panels[..., 4:] << 4)
    # Never a view: the kernel needs an alignment that a tensor mapped from a file may lack.
    return WEIGHTS.empty(panels.shape, weight.dtype).copy_(panels)


class PackedLinear(nn.Module):
    """`functional.linear` with a packed matrix; inference only, batch-invariant.

    Takes contiguous or strided CPU tensors [..., in_features] of the layer's `dtype`, returns
    [..., out_features] of that dtype. The packed matrix is neither parameter nor buffer: `to` and
    `state_dict` do not see it.
    """

    def __init__(
        self, weight: Tensor | Quantized, bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        """Packs `weight` [out_features, in_features]; raises ValueError if it is not `packable`.

        `dtype` defaults to the weight's. The given tensors are copied, not kept.
        """
        super().__init__()
        scales, self.form = None, None
        if isinstance(weight, Quantized):
            weight, scales, self.form = weight
        self.dtype = dtype or weight.dtype
        if UNIT is None or not packable(weight) or self.dtype not in FORMATS:
            raise ValueError(f"cannot pack a {weight.dtype} matrix {tuple(weight.shape)} here")
        self.out_features, self.in_features = weight.shape
        in_bytes = UNIT.byte_dots and self.form is not None and self.form.activations == 8
        self.packed = pack(weight.detach(), UNIT.lanes, UNIT.strip, self.bits, in_bytes=in_bytes)
        self.bias = self._pad_outputs(bias)
        self.scales = None if scales is None else self._pack_group_scales(scales, UNIT.strip)
        self.steps = self.packed.shape[1]
        self.weight: Any = torch.empty(0, dtype=self.dtype)  # some models look at its dtype
        self._kernel()

    def _pad_outputs(self, values: Tensor | None) -> Tensor:
        """One float32 value per output, padded with zeros to whole strips."""
        kept = torch.zeros(self.packed.shape[0] * self.packed.shape[2])
        if values is not None:
            kept[: self.out_features] = values.detach()
        return kept

    @staticmethod
    def _pack_group_scales(scales: Tensor, strip: int) -> Tensor:
        """Scales [outputs, groups] in the kernel's layout, [strips, groups, strip]."""
        groups = scales.shape[1]
        filled = functional.pad(scales.detach(), (0, 0, 0, -len(scales) % strip))
        return filled.reshape(-1, strip, groups).transpose(1, 2).contiguous()

    def _kernel(self) -> Callable[[bytes], None]:
        return kernel.compiled(UNIT, self.dtype, self.form)

    def unpacked(self) -> Tensor:
        """A copy of the matrix [out_features, in_features]; not for integer weights."""
        rows = self.packed.transpose(1, 2).reshape(-1, self.in_features)
        return rows[: self.out_features].clone()

    @property
    def bits(self) -> int:
        """Bits of integer weights; 0 for others."""
        return self.form.weights if self.form else 0

    @property
    def addresses(self) -> tuple[int, int, int]:
        """Addresses of the matrix, the bias and the scales; 0 for no scales."""
        scales = 0 if self.scales is None else self.scales.data_ptr()
        return self.packed.data_ptr(), self.bias.data_ptr(), scales

    def forward(self, x: Tensor) -> Tensor:
        *batch, depth = x.shape
        if x.dtype is not self.dtype or depth != self.in_features or not x.is_cpu:
            raise ValueError(
                f"expected a {self.dtype} CPU tensor [..., {self.in_features}], "
                f"got {x.dtype} {tuple(x.shape)} on {x.device}"
            )
        x = x.contiguous()
        out = x.new_empty(*batch, self.out_features)
        call = kernel.CALL.pack(
            x.data_ptr(),
            *self.addresses,
            self.bits,
            out.data_ptr(),
            math.prod(batch),
            self.steps,
            self.out_features,
            torch.get_num_threads(),
            *(0, 0, 0, 0),
        )
        self._kernel()(call)
        return out

    __call__ = forward  # without the hooks of nn.Module, which cost more than a small matrix

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.dtype}"


# Arguments of `PackedLinear`: matrix, bias and dtype of activations.
Parts = tuple[Tensor | Quantized, Tensor | None, torch.dtype]


def packed(layer: nn.Module) -> nn.Module:
    """The layer packed, if this machine has a kernel for it; else the layer itself."""
    parts = _parts(layer)
    return layer if parts is None or not _suits(parts) else PackedLinear(*parts)


def _parts(layer: nn.Module) -> Parts | None:
    """The arguments of `PackedLinear` for a plain linear layer; None for other layers."""
    if type(layer) is QuantizedLinear:
        return layer.matrix, layer.bias, layer.dtype
    whole = whole_parts(layer)
    return None if whole is None else (*whole, whole[0].dtype)


def _suits(parts: Parts) -> bool:
    weight, _, dtype = parts
    return dtype in FORMATS and packable(weight.values if isinstance(weight, Quantized) else weight)


def replace_linears(model: nn.Module) -> int:
    """Replaces packable linear layers of `model` by `PackedLinear`s, in place; returns how many.

    Includes transformers' `Conv1D`s, linear layers with a transposed matrix (GPT-2).

    For inference only. An unpacked matrix is freed before the next one is packed, unless another
    module shares it, as an embedding does with a tied head; that matrix then exists twice.
    """
    replaced = 0
    for parent in [module for module in model.modules() if not isinstance(module, LAYERS)]:
        for name, child in list(parent.named_children()):
            parts = _parts(child)
            if parts is not None and _suits(parts):
                setattr(parent, name, PackedLinear(*parts))
                replaced += 1
            del parts  # it may hold an unpacked copy of a 4-bit matrix
    return replaced


def available() -> bool:
    """Whether this machine has the kernel; if so, it is always used.

    Torch's kernels are nowhere much faster for the rows of a draft, and in bfloat16 their results
    depend on the batch.
    """
    return UNIT is not None


def has_bfloat16_arithmetic() -> bool:
    """Whether this CPU multiplies bfloat16 natively."""
    # Private functions, but torch chooses its own kernels by them.
    queries = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, query, bool)() for query in queries)
