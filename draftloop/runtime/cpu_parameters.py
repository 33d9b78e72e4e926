"""Parameters that a model multiplies by without `nn.Linear`, such as those of routers and experts.

The order of torch's sums depends on the number of rows. So such a parameter is replaced by an
object that handles `functional.linear` and `@` by `PackedLinear`, through torch's protocol for
tensor-like objects (`__torch_function__`), and behaves like its tensor otherwise.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from draftloop.runtime.cpu_linear import PackedLinear, packable
from draftloop.runtime.quantization import MULTIPLE, Format, quantized

PRODUCTS = {torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__}


class Parameter:
    """A parameter whose matrices are packed at the first multiplication."""

    def __init__(self, dense: Tensor) -> None:
        self.dense = dense
        self.shape, self.dtype, self.device = dense.shape, dense.dtype, dense.device

    def __getattr__(self, name: str) -> Any:
        if name == "dense":  # it was deleted when the stack was packed
            raise AttributeError("these weights are packed, each matrix by itself")
        return getattr(self.dense, name)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        match args:
            case (Tensor() as x, Matrix() as weight, *bias) if function is functional.linear:
                (added,) = bias or [(kwargs or {}).get("bias")]
                product = weight.multiplied(x, by_columns=False)
                return product if added is None else product + added
            case (Tensor() as x, Matrix() as weight) if function in PRODUCTS:
                return weight.multiplied(x, by_columns=True)
        return function(*map(_tensor, args), **(kwargs or {}))


class Matrix(Parameter):
    """A matrix: [outputs, k] for `functional.linear`, [k, outputs] for `@`.

    `stack`: the stack that it is part of, which is packed as a whole.
    """

    def __init__(self, dense: Tensor, stack: Stack | None = None) -> None:
        super().__init__(dense)
        self._stack = stack
        self._packed: Callable[[Tensor], Tensor] | None = None
        self._cast: dict[torch.dtype, Matrix] = {}

    def __getitem__(self, index: Any) -> Tensor:
        return self.dense[index]

    def multiplied(self, x: Tensor, *, by_columns: bool) -> Tensor:
        """Rows [..., k] times the matrix."""
        if self._packed is None:
            if self._stack is None:
                self.pack(by_columns)
            else:
                self._stack.pack(by_columns)
        assert self._packed is not None
        return self._packed(x)

    def pack(self, by_columns: bool, form: Format | None = None) -> None:
        """Packs the matrix if the kernel supports it, quantized by `form` if given."""
        weight = self.dense.T.contiguous() if by_columns else self.dense
        if not packable(weight):
            self._packed = functools.partial(functional.linear, weight=weight)
        elif form and weight.shape[1] % MULTIPLE == 0:
            self._packed = PackedLinear(quantized(weight, form), None, weight.dtype)
        else:
            self._packed = PackedLinear(weight)

    def to(self, dtype: torch.dtype) -> Matrix:
        """This matrix in another dtype; cached."""
        if dtype is self.dtype:
            return self
        if dtype not in self._cast:
            self._cast[dtype] = Matrix(self.dense.to(dtype))
        return self._cast[dtype]

    type = to

    def float(self) -> Matrix:
        """This matrix in float32."""
        return self.to(torch.float32)


class LayerMatrix(Matrix):
    """The matrix of a packed linear layer, for a model's code that multiplies by `layer.weight`.

    Most code reads at most its dtype, so it is unpacked when anything else is needed.
    """

    def __init__(self, layer: PackedLinear) -> None:
        self._layer = weakref.proxy(layer)  # no cycle: weights are freed with their model
        one = torch.empty(1, dtype=layer.dtype)
        super().__init__(one.expand(layer.out_features, layer.in_features))
        del self.dense

    def __getattr__(self, name: str) -> Any:
        if name == "dense":
            self.dense = self._layer.unpacked()
            return self.dense
        return super().__getattr__(name)


class Stack(Parameter):
    """A stack of matrices [experts, ...]; `form`: quantization of each (`Matrix.pack`)."""

    def __init__(self, dense: Tensor, form: Format | None = None) -> None:
        super().__init__(dense)
        self._form = form
        self.matrices = [Matrix(matrix, self) for matrix in dense]

    def __getitem__(self, index: Any) -> Any:
        scalar = isinstance(index, int) or (isinstance(index, Tensor) and index.dim() == 0)
        return self.matrices[int(index)] if scalar else self.dense[index]

    def pack(self, by_columns: bool) -> None:
        """Packs all matrices and frees the unpacked ones."""
        for matrix in self.matrices:
            matrix.pack(by_columns, self._form)
            del matrix.dense
        del self.dense


def _tensor(value: Any) -> Any:
    return value.dense if isinstance(value, Parameter) else value


def multiplies_itself(module: nn.Module) -> bool:
    """Whether the module is not one of torch's own, or is a subclass of its linear layer."""
    if isinstance(module, nn.Linear):
        return type(module) is not nn.Linear
    kinds = [kind.__module__ for kind in type(module).__mro__ if kind not in (nn.Module, object)]
    return not any(kind.startswith("torch.nn") for kind in kinds)


def _replacement(parameter: Tensor, form: Format | None) -> Parameter | None:
    if parameter.dim() == 3:
        return Stack(parameter, form)
    return Matrix(parameter) if parameter.dim() == 2 else None


def replace_parameters(model: PreTrainedModel, form: Format | None = None) -> bool:
    """Replaces matrices, and stacks of them, in modules of a model's own code.

    Experts are then multiplied one by one, each by the rows that chose it. With a `form`, stacks
    are quantized; single matrices are not, as they are routers' and small. The matrix of a packed
    linear layer is found at its `weight` again, unless it is quantized. Returns whether any stack
    was quantized.
    """
    for module in model.modules():
        if isinstance(module, PackedLinear) and module.form is None:
            module.weight = LayerMatrix(module)
    replaced = has_quantized = False
    for module in filter(multiplies_itself, list(model.modules())):
        for name, parameter in list(module.named_parameters(recurse=False)):
            replacement = _replacement(parameter.detach(), form)
            if replacement is not None:
                delattr(module, name)
                setattr(module, name, replacement)
                replaced = True
                has_quantized |= form is not None and isinstance(replacement, Stack)
    if replaced:
        model.set_experts_implementation("eager")
    return has_quantized
