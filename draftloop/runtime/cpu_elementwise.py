"""Activation functions whose results do not depend on a value's place in the tensor.

Torch computes whole vectors in one way and the remainder at the end of each thread's part in
another, so the last bit of a `silu` depends on the number of rows. Here there is no remainder,
neither at the end nor between threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VECTORS = 64  # values; a multiple of the number that torch's loops process at a time
ALONE = 16384  # values that torch processes in one thread
TOGETHER = 32768  # values per thread, equal for all threads
FUNCTIONS = ("sigmoid", "silu", "tanh")
CODE_OF_MODELS = "transformers.models."
KINDS = (nn.SiLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.Mish, nn.Softplus, nn.ELU)


class Elementwise(nn.Module):
    """Applies `function` to every value, in any shape; inference only.

    On devices other than CPUs it simply calls the function.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cpu:
            return self.function(x)
        count = x.numel()
        if count <= ALONE and count % VECTORS == 0:
            return self.function(x.contiguous())
        whole = functional.pad(x.reshape(-1), (0, -count % VECTORS))
        shared = TOGETHER * torch.get_num_threads()
        most = count // shared * shared
        parts = [*whole[:most].split(shared), *whole[most:].split(ALONE)]
        return torch.cat([self.function(part) for part in parts])[:count].view(x.shape)


class Functions:
    """Wraps a torch module: FUNCTIONS, if called with one tensor only, become `Elementwise`."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        for name in FUNCTIONS:
            if hasattr(module, name):
                setattr(self, name, _elementwise_on_tensors(getattr(module, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _elementwise_on_tensors(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    elementwise = Elementwise(function)

    def call(*given: Any, **more: Any) -> Tensor:
        alone = len(given) == 1 and not more
        return elementwise(*given) if alone else function(*given, **more)

    return call


def is_elementwise(module: nn.Module) -> bool:
    """Whether the module is one of torch's or transformers' activation functions."""
    return type(module) in KINDS or type(module).__module__ == "transformers.activations"


def replace_activations(model: nn.Module) -> None:
    """Wraps the activation functions of `model`, in place and in the modules of its code."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if is_elementwise(child):
                setattr(parent, name, Elementwise(child))
    for name in {type(module).__module__ for module in model.modules()}:
        if name.startswith(CODE_OF_MODELS):
            _replace_functions(sys.modules[name])


def _replace_functions(code: ModuleType) -> None:
    """Wraps the FUNCTIONS that a model's code calls directly, for instance in gates of experts."""
    for name, known in list(vars(code).items()):
        if known is torch or known is functional:
            setattr(code, name, Functions(known))
