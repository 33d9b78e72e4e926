"""Linear layers for CPUs: weights streamed once for a block of rows, sums in an order of their own.

Verifying a draft multiplies every weight matrix by 2 to 32 rows. On a CPU without native bfloat16
arithmetic torch widens the weights anew for each such call, so eight rows cost four times one row,
though both read the same bytes. The kernel here reads each weight once, widens it in a register
and multiplies it by every row held in the other registers.

Its second property matters as much. Every output is the chain

    sum = bias; for k = 0, 1, ..: sum = fma(weight[n, k], x[row, k], sum)      (float32)

rounded once at the end, whatever the number of rows, their place in the batch, the number of
threads or the width of the vectors. A row verified among others is therefore bit-identical to the
same row decoded alone, in bfloat16 as in float32. CPUs with tiles (AMX) or dot products of pairs
(AVX512-BF16) multiply bfloat16 by them: 32 or 2 values of k at a time are added in the processor's
order, and the rest holds as well.

The kernel is LLVM IR that `cpu_linear_kernel` writes and compiles when first needed (a second):
no C compiler is asked of the user. Threads are those of the OpenMP runtime that torch itself uses,
so that two pools never fight for the cores. See docs/decisions/0002-cpu-linear.md, 0010 and 0011.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from draftloop.runtime.huge_pages import WEIGHTS

try:
    from draftloop.runtime import cpu_linear_kernel as kernel
    from draftloop.runtime.llvm import vector_unit
    from draftloop.runtime.team import bind_openmp
except ImportError:  # no llvmlite: torch's own kernels stay in use
    UNIT = None
else:
    UNIT = vector_unit() if bind_openmp() else None


def packable(weight: Tensor) -> bool:
    """Whether `PackedLinear` takes this matrix on this machine."""
    return (
        UNIT is not None
        and weight.dim() == 2
        and weight.is_cpu
        and (
            weight.dtype is torch.float32
            or (weight.dtype is torch.bfloat16 and weight.shape[1] % 2 == 0)
        )
    )


def pack(weight: Tensor, lanes: int, strip: int) -> Tensor:
    """Lay [outputs, k] out in panels: [outputs / lanes, words along k, lanes, values in a word].

    A word is 32 bits. Outputs are padded with zeros to a multiple of `strip`.
    """
    outputs, depth = weight.shape
    values = 4 // weight.element_size()
    weight = functional.pad(weight, (0, 0, 0, -outputs % strip))
    panels = weight.reshape(-1, lanes, depth // values, values).permute(0, 2, 1, 3)
    # Never a view: the kernel needs an alignment that a tensor mapped from a file may lack.
    return WEIGHTS.empty(panels.shape, weight.dtype).copy_(panels)


class PackedLinear(nn.Module):
    """`functional.linear` by a matrix packed once; inference only, batch-invariant.

    Takes contiguous or strided CPU tensors [..., in_features] of the dtype of the weight, returns
    [..., out_features] of that dtype. The packed matrix is neither parameter nor buffer: `to` and
    `state_dict` do not see it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Packs `weight` [out_features, in_features]; raises ValueError where `packable` is false.

        Neither tensor is kept.
        """
        super().__init__()
        if UNIT is None or not packable(weight):
            raise ValueError(f"cannot pack a {weight.dtype} matrix {tuple(weight.shape)} here")
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self.packed = pack(weight.detach(), UNIT.lanes, UNIT.strip)
        self.bias = torch.zeros(self.packed.shape[0] * UNIT.lanes)
        if bias is not None:
            self.bias[: self.out_features] = bias.detach()
        self.steps = self.packed.shape[1]
        kernel.compiled(UNIT, self.dtype)

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
            self.packed.data_ptr(),
            self.bias.data_ptr(),
            out.data_ptr(),
            math.prod(batch),
            self.steps,
            self.out_features,
            torch.get_num_threads(),
            *(0, 0, 0, 0),
        )
        kernel.compiled(UNIT, self.dtype)(call)
        return out

    __call__ = forward  # without the hooks of nn.Module, which cost more than a small matrix

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.dtype}"


def packed(layer: nn.Linear) -> nn.Module:
    """The same layer packed, where this machine has a kernel for it."""
    return PackedLinear(layer.weight, layer.bias) if packable(layer.weight) else layer


def _weight_and_bias(layer: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """[outputs, k] and [outputs] of a layer that does nothing but multiply; None of any other."""
    if type(layer) is nn.Linear:
        return layer.weight, layer.bias
    if type(layer) is Conv1D:
        weight: Any = layer.weight
        return weight.T, cast(Tensor, layer.bias)
    return None


def replace_linears(model: nn.Module) -> int:
    """Swap the packable `nn.Linear`s of `model` for `PackedLinear`s in place; returns how many.

    And transformers' `Conv1D`s, which are linear layers too, of GPT-2's time.

    For inference only. An unpacked matrix is freed before the next one is packed, unless another
    module shares it, as the embedding does with a tied head: that matrix then exists twice.
    """
    replaced = 0
    for parent in [module for module in model.modules() if _weight_and_bias(module) is None]:
        for name, child in list(parent.named_children()):
            found = _weight_and_bias(child)
            if found is not None and packable(found[0]):
                setattr(parent, name, PackedLinear(*found))
                replaced += 1
    return replaced


def available() -> bool:
    """Whether this machine has the kernel; then it is used, whatever torch's takes.

    Torch's are nowhere much faster for the rows of a draft, and in bfloat16 what is said would
    depend on what is computed beside it.
    """
    return UNIT is not None


def has_bfloat16_arithmetic() -> bool:
    """Whether this CPU multiplies bfloat16 natively."""
    # Private, but these are what torch chooses its own kernels by.
    queries = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, query, bool)() for query in queries)
