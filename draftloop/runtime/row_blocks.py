"""The row-wise operations of a `LeanDecoder` layer: everything except attention.

They are two functions of tensors only, so that `torch.compile` can fuse each into a few kernels: on
a GPU, a step of a small model mostly consists of launching dozens of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftloop.errors import StartupFailure
from draftloop.runtime.trial import error_text

Result = TypeVar("Result")


# A linear layer, or the matrix and bias of a plain one, for which compiled code has fewer guards to
# check at every call (85 instead of 150 µs on one core).
Multiplier = nn.Module | tuple[Tensor, Tensor | None]


class Heads(NamedTuple):
    """Number of heads of queries, and of keys, which values have as well."""

    queries: int
    keys: int


class RowBlocks:
    """The two functions, optionally compiled: once for one row and once for more."""

    def __init__(self, *, compiled: bool) -> None:
        self.before_attention = _compiled(before_attention) if compiled else before_attention
        self.after_attention = _compiled(after_attention) if compiled else after_attention


def normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm over the last dimension."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return weight * wide.to(x.dtype)


def before_attention(
    x: Tensor,
    delta: Tensor,
    norm: Tensor,
    project: Multiplier,
    head_norms: tuple[Tensor, Tensor] | None,
    angles: tuple[Tensor, Tensor],
    heads: Heads,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns x + delta [rows, hidden]; rotated queries, then keys; and values.

    The last two are [rows, heads, dim].
    """
    x = x + delta
    pointing = heads.queries + heads.keys
    joined = multiplied(normed(x, norm, epsilon), project).view(len(x), pointing + heads.keys, -1)
    rotated = joined[:, :pointing]
    if head_norms is not None:
        queries, keys = rotated[:, : heads.queries], rotated[:, heads.queries :]
        parts = (normed(queries, head_norms[0], epsilon), normed(keys, head_norms[1], epsilon))
        rotated = torch.cat(parts, dim=1)
    return x, _rotated(rotated, *angles), joined[:, pointing:]


def after_attention(
    x: Tensor,
    delta: Tensor,
    norm: Tensor,
    widen: Multiplier,
    activation: nn.Module,
    narrow: Multiplier,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Returns x + delta [rows, hidden], and what the feed-forward block adds to it."""
    x = x + delta
    gate, up = multiplied(normed(x, norm, epsilon), widen).chunk(2, dim=-1)
    return x, multiplied(activation(gate) * up, narrow)


def multiplied(x: Tensor, layer: Multiplier) -> Tensor:
    """Applies a linear layer: [rows, outputs]."""
    return functional.linear(x, *layer) if isinstance(layer, tuple) else layer(x)


def parts_of(layer: nn.Module) -> Multiplier:
    """A layer as `multiplied` takes it in code that torch compiles."""
    if type(layer) is not nn.Linear:
        return layer
    return layer.weight.detach(), None if layer.bias is None else layer.bias.detach()


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """RoPE on [rows, heads, dim]."""
    low, high = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-high, low), dim=-1) * sines


def _compiled(function: Callable[..., Result]) -> Callable[..., Result]:
    compiled: Any = torch.compile(function, dynamic=True)

    def run(*arguments: Any) -> Result:
        try:
            return compiled(*arguments)  # type: ignore[no-any-return]
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = error_text(error)
            raise StartupFailure(f"torch_compile: torch cannot: {reason}; leave it out") from error

    return run
