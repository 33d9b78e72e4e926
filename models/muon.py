"""Muon for hidden matrices, AdamW for embeddings and norms, on state that processes may share.

Muon: momentum, then the nearest semi-orthogonal matrix by a quintic Newton-Schulz iteration (Jordan
et al. 2024, https://kellerjordan.github.io/posts/muon/).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalise(
    matrix: Tensor, dtype: torch.dtype = torch.float32, iterations: int = 5
) -> Tensor:
    """A matrix with the same shape and singular vectors, and singular values near one.

    Also for several matrices, [..., rows, columns]. Computed in `dtype`: bfloat16 is precise enough
    for a direction.
    """
    a, b, c = QUINTIC
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    wide = matrix.mT if is_tall else matrix
    wide = (wide / (torch.linalg.matrix_norm(wide, keepdim=True) + 1e-7)).to(dtype)
    for _ in range(iterations):
        gram = wide @ wide.mT
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    turned: Tensor = wide.to(matrix.dtype)
    return turned.mT if is_tall else turned


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon, not AdamW, updates this parameter."""
    return parameter.ndim == 2 and ".layers." in name


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Peak learning rates, weight decay of hidden matrices, momenta, and dtype of Muon's iteration.

    A step at rate r shrinks a matrix by the share r x decay (decoupled: Loshchilov and Hutter,
    arXiv 1711.05101).
    """

    matrix: float = 0.02
    other: float = 0.003
    decay: float = 0.0
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.95)
    dtype: torch.dtype = torch.float32


def new_momenta(model: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Zeroed optimiser state by parameter name: `first`, and `second` for AdamW's parameters."""
    state = {}
    for name, parameter in model.named_parameters():
        slots = ("first",) if is_hidden_matrix(name, parameter) else ("first", "second")
        state[name] = {slot: torch.zeros_like(parameter, requires_grad=False) for slot in slots}
    return state


def muon_update(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    firsts: Sequence[Tensor],
    rates: Rates,
    factor: float,
) -> None:
    """One Muon step in place, with Nesterov momentum, for matrices of one shape.

    Tall matrices take larger steps.
    """
    for first, gradient in zip(firsts, gradients, strict=True):
        first.lerp_(gradient, 1 - rates.momentum)
    updates = torch.stack(list(gradients)).lerp(torch.stack(list(firsts)), rates.momentum)
    rows, columns = updates.shape[-2:]
    rate, scale = rates.matrix * factor, max(1.0, rows / columns) ** 0.5
    directions = orthogonalise(updates, rates.dtype)
    for parameter, direction in zip(parameters, directions.unbind(), strict=True):
        parameter.mul_(1 - rate * rates.decay).sub_(direction, alpha=rate * scale)


def adam_update(
    parameter: Tensor,
    gradient: Tensor,
    state: dict[str, Tensor],
    rates: Rates,
    factor: float,
    step: int,
) -> None:
    """One Adam step in place; `step` counts from one and drives the bias correction."""
    first, second = state["first"], state["second"]
    rate, betas = rates.other * factor, rates.betas
    first.lerp_(gradient, 1 - betas[0])
    second.lerp_(gradient.square(), 1 - betas[1])
    spread = (second / (1 - betas[1] ** step)).sqrt_().add_(1e-10)
    parameter.addcdiv_(first, spread, value=-rate / (1 - betas[0] ** step))


@torch.no_grad()
def update(
    name: str,
    parameter: Tensor,
    gradient: Tensor,
    state: dict[str, Tensor],
    rates: Rates,
    factor: float,
    step: int,
) -> None:
    """Updates one parameter by the rule for its name and shape, at `factor` of its peak rate."""
    if is_hidden_matrix(name, parameter):
        muon_update([parameter], [gradient], [state["first"]], rates, factor)
    else:
        adam_update(parameter, gradient, state, rates, factor, step)


@torch.no_grad()
def update_all(
    parameters: Mapping[str, nn.Parameter],
    momenta: Mapping[str, dict[str, Tensor]],
    rates: Rates,
    factor: float,
    step: int,
) -> None:
    """Updates all parameters by their gradients; matrices of one shape are updated together.

    On a GPU, such small matrices' time is mostly spent launching kernels.
    """
    names_by_shape: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, parameter in parameters.items():
        assert parameter.grad is not None
        if is_hidden_matrix(name, parameter):
            names_by_shape[tuple(parameter.shape)].append(name)
        else:
            adam_update(parameter, parameter.grad, momenta[name], rates, factor, step)
    for names in names_by_shape.values():
        moved = [parameters[name] for name in names]
        gradients = [parameter.grad for parameter in moved if parameter.grad is not None]
        muon_update(moved, gradients, [momenta[name]["first"] for name in names], rates, factor)


def share_out(model: nn.Module, workers: int) -> list[list[str]]:
    """Parameter names by worker: the costliest first, each to the least loaded worker.

    The cost is that of the Newton-Schulz iteration.
    """
    costs = {
        name: min(parameter.shape) ** 2 * max(parameter.shape) * 10
        if is_hidden_matrix(name, parameter)
        else parameter.numel()
        for name, parameter in model.named_parameters()
    }
    shares: list[list[str]] = [[] for _ in range(workers)]
    loads = [0] * workers
    for name in sorted(costs, key=lambda name: (-costs[name], name)):
        lightest = loads.index(min(loads))
        shares[lightest].append(name)
        loads[lightest] += costs[name]
    return shares
