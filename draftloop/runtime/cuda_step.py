"""A decoder step with a fixed number of rows, usually most of them padding, on a GPU.

cuBLAS chooses a kernel, and with it an order of additions, by the shape of a product. If every
product of every step has the same shape, a row's bits depend on its text only, whether it is
decoded alone, in a draft, with other sessions or in any chunk of a prompt. Up to about two hundred
rows cost the same as one, as reading the weights takes longer than computing. See
docs/decisions/0028-padded-steps-on-gpus.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional

from draftloop.runtime import cuda_rows
from draftloop.runtime.cpu_elementwise import Elementwise
from draftloop.runtime.cpu_stack import SILU, Frame, StackShape
from draftloop.runtime.cuda_inputs import Inputs
from draftloop.runtime.cuda_rows import CacheLayer
from draftloop.runtime.kv_cache import KVCache
from draftloop.runtime.row_blocks import multiplied

if TYPE_CHECKING:
    from draftloop.runtime.lean import Layer


class PaddedStep:
    """A step whose only changing input is `inputs`, the rows.

    This allows recording it as a CUDA graph: nothing in it waits for the device or depends on
    values that only the device knows.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        frame: Frame,
        shape: StackShape,
        cache: KVCache,
        inputs: Inputs,
    ) -> None:
        self.inputs = inputs
        self._layers, self._frame, self._shape = layers, frame, shape
        self._cached = [CacheLayer(*pair) for pair in zip(cache.keys, cache.values, strict=True)]

    def body(self) -> Tensor:
        """Runs all layers and the last norm: [rows, hidden]; stores keys and values."""
        frame, epsilon = self._frame, self._shape.epsilon
        x = functional.embedding(self.inputs.tokens, frame.embedding)
        delta: Tensor | None = None
        for layer, cached in zip(self._layers, self._cached, strict=True):
            delta = self._layer(x, delta, layer, cached)
        return cuda_rows.add_and_norm(x, delta, frame.last_norm, epsilon)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocabulary] in the model's dtype."""
        return multiplied(hidden, self._frame.head)

    def _layer(self, x: Tensor, delta: Tensor | None, layer: Layer, cached: CacheLayer) -> Tensor:
        """Adds delta and the attention output to x, in place; returns the next delta."""
        frame, shape, inputs = self._frame, self._shape, self.inputs
        normed = cuda_rows.add_and_norm(x, delta, layer.first_norm, shape.epsilon)
        joined = multiplied(normed, layer.before_attention)
        angles = frame.cosines, frame.sines
        queries = cuda_rows.rope_and_store(joined, angles, layer.head_norms, inputs, cached, shape)
        attended = cuda_rows.attend(queries, inputs, cached, shape, layer.window)
        delta = multiplied(attended, layer.after_attention)
        normed = cuda_rows.add_and_norm(x, delta, layer.second_norm, shape.epsilon)
        joined = multiplied(normed, layer.before_activation)
        return multiplied(_activated(joined, layer.activation), layer.after_activation)


def _activated(joined: Tensor, activation: nn.Module) -> Tensor:
    """activation(first half) * second half of [rows, 2 * width]."""
    function = activation.function if isinstance(activation, Elementwise) else activation
    if type(function).__name__ in SILU:
        return cuda_rows.gate(joined)
    opened, up = joined.chunk(2, dim=-1)
    output: Tensor = function(opened) * up
    return output
