"""Runs a lean decoder in one call, from tokens to logits, on a CPU.

Between two matrices there are a dozen operations on a few rows, each of which takes microseconds.
Called one by one through torch, they would take longer than many of the matrices, especially after
these have evicted everything else from the caches. Here they are compiled, in the order and with
the rounding of torch's operations, and call the kernels of `cpu_linear` and `cpu_attention` in
between. Each row is computed on its own, so its result is the same alone and in a batch. See
docs/decisions/0007-cpu-stack.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from draftloop.runtime.cpu_linear import UNIT, PackedLinear
from draftloop.runtime.forward import Batch, Segment
from draftloop.runtime.kv_cache import KVCache
from draftloop.runtime.tree_attention import bias_of

# Fields of the kernel's record that change from call to call.
CHANGING_FIELDS = (
    "segments", "segment_count", "rows", "threads", "token_ids", "positions", "chosen",
    "chosen_count", "logits",
)  # fmt: skip

if UNIT is not None:
    from draftloop.runtime import cpu_stack_kernel as kernel
    from draftloop.runtime.llvm import address_of
    from draftloop.runtime.vector_unit import lanes_for

    CHANGING = [kernel.CALL_FIELDS.index(name) for name in CHANGING_FIELDS]

if TYPE_CHECKING:
    from draftloop.runtime.lean import Layer

SILU = ("SiLU", "SiLUActivation")  # torch's and transformers'

Table = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StackShape:
    """Sizes that all layers share."""

    hidden: int
    heads: int
    kv_heads: int
    dim: int
    scale: float
    epsilon: float


@dataclass(frozen=True, slots=True)
class Frame:
    """The weights and tables outside the layers.

    embedding: [vocabulary, hidden]; cosines, sines: [positions, 1, dim]; last_norm: [hidden].
    """

    embedding: Tensor
    cosines: Tensor
    sines: Tensor
    last_norm: Tensor
    head: nn.Module

    @property
    def dense(self) -> tuple[Tensor, ...]:
        """The tensors that the kernel reads row by row."""
        return self.embedding, self.cosines, self.sines, self.last_norm


class CpuStack:
    """One decoder. Raises ValueError if it is not `stackable`.

    Used from one thread at a time, as the buffers between the layers are reused.
    """

    def __init__(self, layers: Sequence[Layer], frame: Frame, shape: StackShape) -> None:
        if not stackable(layers, frame, shape):
            raise ValueError("no kernel for these layers here")
        assert UNIT is not None
        self._shape, self._layers, self._frame = shape, layers, frame
        self._head = cast(PackedLinear, frame.head)
        self._dtype = frame.last_norm.dtype
        self._windows = sorted({layer.window or 0 for layer in layers})
        linears = [self._head, *(linear for layer in layers for linear in _linears(layer))]
        # The 4-bit kernel if any layer needs it: it can handle 8 bits, too.
        form = min((linear.form for linear in linears if linear.form), default=None)
        self._kernel = kernel.compiled(UNIT, self._dtype, shape.dim, _widths(layers, shape), form)
        # After the last layer, the entry for the next matrix is the head.
        fields = [self._fields(layer) for layer in layers]
        head = fields[-1][: kernel.LAYER_FIELDS.index("before_attention weights")]
        head += len(kernel.LINEARS) * _linear_fields(self._head)
        self._table = np.array([*fields, head], np.int64)
        self._work_per_row = sum(linear.in_features * linear.out_features for linear in linears)
        self._cache: KVCache | None = None
        self._between: dict[str, Tensor] = {}
        self._rows = self._values = 0  # capacity of the buffers
        self._call = np.zeros(0, np.int64)
        self.moves = 0  # how often buffers moved, which makes earlier records invalid

    def run(self, batch: Batch, cache: KVCache, chosen: Sequence[int]) -> Tensor:
        """Runs a batch; returns the logits of the chosen rows, float32 [chosen, vocabulary].

        The cache must have the model's dtype.
        """
        kept = [self._segment(segment) for segment in batch.segments]
        segments = np.array([fields for fields, _ in kept], np.int64)
        numbers = np.array([*batch.token_ids, *batch.positions, *chosen], np.int64)
        rows, size = len(batch.token_ids), numbers.itemsize
        places = [numbers.ctypes.data + start * size for start in (0, rows, 2 * rows)]
        values = len(chosen) * self._head.out_features
        logits = torch.empty(values + SPARE)
        call = self.call(cache, rows, segments, places, len(chosen), logits.data_ptr())
        self._kernel(call.tobytes())
        return logits[:values].view(len(chosen), -1)

    @property
    def entry(self) -> int:
        """The kernel's address."""
        return address_of(self._kernel)

    @property
    def sees_everything(self) -> bool:
        """Whether no layer has a sliding window."""
        return self._windows == [0]

    def call(
        self, cache: KVCache, rows: int, segments: Table, numbers: Sequence[int], chosen: int,
        logits: int,
    ) -> Table:  # fmt: skip
        """The kernel's record for `rows` rows, of which `chosen` ones get logits.

        numbers: addresses of tokens, positions and chosen rows. logits: address of the logits. The
        record is valid until the next call, a copy until `moves` changes; also for fewer rows.
        """
        if self._make_room(rows, chosen) or cache is not self._cache:
            self._bind(cache)
            self._call = np.frombuffer(self._constant(cache), np.int64).copy()
            self.moves += 1
        changing = (
            segments.ctypes.data, len(segments), rows, torch.get_num_threads(), *numbers, chosen,
            logits,
        )  # fmt: skip
        self._call[CHANGING] = changing
        return self._call

    def _constant(self, cache: KVCache) -> bytes:
        """The record without the fields that change from call to call."""
        shape = self._shape
        embedding, *around = (matrix.data_ptr() for matrix in self._frame.dense)
        return kernel.CALL.pack(
            self._table.ctypes.data, len(self._layers), 0, 0, 0, shape.hidden, shape.heads,
            shape.kv_heads, shape.dim, cache.keys[0].stride(1), cache.keys[0].stride(0), 0,
            self._work_per_row, 0, 0, embedding,
            *(self._between[name].data_ptr() for name in BETWEEN), *around, 0, 0,
            *_linear_fields(self._head), self._between["scores"].data_ptr(), 0, shape.scale,
            shape.epsilon,
        )  # fmt: skip

    def _fields(self, layer: Layer) -> list[int]:
        norms = [norm.data_ptr() for norm in (layer.first_norm, layer.second_norm)]
        norms += [norm.data_ptr() for norm in layer.head_norms] if layer.head_norms else [0, 0]
        fields = [*norms, 0, 0, self._windows.index(layer.window or 0)]
        for linear in _linears(layer):
            fields += _linear_fields(linear)
        return fields

    def _bind(self, cache: KVCache) -> None:
        self._cache = cache
        keys, values = (kernel.LAYER_FIELDS.index(name) for name in ("keys", "values"))
        self._table[:-1, keys] = [tensor.data_ptr() for tensor in cache.keys]
        self._table[:-1, values] = [tensor.data_ptr() for tensor in cache.values]

    def _segment(self, segment: Segment) -> tuple[list[int], Table]:
        """The segment's fields in the record, and the table that they point to."""
        biases = []
        for window in self._windows:
            bias = bias_of(segment, window or None)
            biases.append((bias.ctypes.data, bias.shape[1]))
        table = np.array(biases, np.int64)
        fields = [segment.slot, segment.start, segment.stop - segment.start,
                  segment.stored_from, segment.stored_to, table.ctypes.data]  # fmt: skip
        return fields, table

    def _make_room(self, rows: int, chosen: int) -> bool:
        """Enlarges the buffers for at least this many rows and logits; whether any has moved."""
        values = chosen * self._head.out_features + SPARE
        made: dict[str, Tensor] = {}  # collected first: if memory runs out, nothing has changed
        if self._rows < rows:
            shape = self._shape
            joined = (shape.heads + 2 * shape.kv_heads) * shape.dim
            query = shape.heads * shape.dim
            gates = max(_linears(layer)[2].out_features for layer in self._layers)
            widths = {
                "x": shape.hidden, "normed": shape.hidden, "joined": joined, "query": query,
                "attended": query, "narrowed": query, "gates": gates, "inner": gates // 2,
                "delta": shape.hidden,
            }  # fmt: skip
            made = {
                name: torch.empty(rows, width, dtype=BETWEEN[name] or self._dtype)
                for name, width in widths.items()
            }
        if self._values < values:
            made["scores"] = torch.empty(values, dtype=self._dtype)
        self._between |= made
        self._rows, self._values = max(self._rows, rows), max(self._values, values)
        return bool(made)


SPARE = 16  # extra values after the logits, as the last vector may extend beyond them
# Buffers between the layers, in the order of the kernel's record; None: the model's dtype.
BETWEEN: dict[str, torch.dtype | None] = {
    "x": None, "normed": None, "joined": None, "query": torch.float32, "attended": torch.float32,
    "narrowed": None, "gates": None, "inner": None, "delta": None,
}  # fmt: skip


def stackable(layers: Sequence[Layer], frame: Frame, shape: StackShape) -> bool:
    """Whether the kernel can run this decoder on this machine."""
    dtype = frame.last_norm.dtype
    return (
        UNIT is not None
        and isinstance(frame.head, PackedLinear)
        and all(matrix.dtype is dtype and matrix.is_contiguous() for matrix in frame.dense)
        and all(isinstance(linear, PackedLinear) for layer in layers for linear in _linears(layer))
        and all(type(layer.activation.function).__name__ in SILU for layer in layers)
        and all(
            norm.dtype is dtype and norm.is_contiguous()
            for layer in layers
            for norm in (layer.first_norm, layer.second_norm, *(layer.head_norms or ()))
        )
        and lanes_for(UNIT, shape.dim) > 0
        and lanes_for(UNIT, *_widths(layers, shape)) > 0
    )


def _linears(layer: Layer) -> list[PackedLinear]:
    """The layer's matrices in the order of the record; `stackable` checks that they are packed."""
    linears = (
        layer.before_attention, layer.after_attention, layer.before_activation,
        layer.after_activation,
    )  # fmt: skip
    return cast(list[PackedLinear], list(linears))


def _linear_fields(linear: PackedLinear) -> list[int]:
    """The fields of a matrix, in the order of the kernel's records."""
    return [*linear.addresses, linear.bits, linear.steps, linear.out_features]


def _widths(layers: Sequence[Layer], shape: StackShape) -> tuple[int, ...]:
    inner = {linear.in_features for layer in layers for linear in _linears(layer)}
    return (shape.dim // 2, *sorted(inner))
