"""Dot products of four bytes (AVX512-VNNI) for the kernel of `cpu_linear`: LLVM IR.

One instruction multiplies a word of four weights by a word of four activations and adds the
products: twice as many as with activations of 16 bits. Importing this module requires llvmlite.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from draftloop.runtime.cpu_bytes_kernel import Bytes
from draftloop.runtime.cpu_lines_kernel import BLOCK
from draftloop.runtime.llvm import F32, I32, FormatEmitter, at, i64

I8 = ir.IntType(8)


class ByteDots(Bytes):
    """`Bytes` whose words are multiplied whole, activations rounded to 8 bits.

    Weights are in order of k, with `offset` added, since the instruction takes them unsigned. What
    that adds to a sum depends on the row only, and is subtracted from the sum's initial value.
    """

    name = "byte_dots"
    offset = 128
    parts = 1
    wide_rows, max_rows = 14, 20  # as `Dots`

    def __init__(self, emitter: FormatEmitter) -> None:
        lanes = emitter.unit.lanes
        self._declare_dot(emitter)
        self._total = emitter.declare(f"llvm.vector.reduce.add.v{lanes}i32", I32, [emitter.ints])
        self._fours = ir.VectorType(I8, lanes)
        super().__init__(emitter, bits=8)

    def _declare_dot(self, emitter: FormatEmitter) -> None:
        name = "llvm.x86.avx512.vpdpbusd.512"
        self._dot = emitter.declare(name, emitter.ints, [emitter.ints] * 3)

    def _begun(self, b: Any, start: Any, row: Any) -> Any:
        """The initial value: the contribution of the weights' offset, subtracted."""
        less = b.load(at(b, row, i64(BLOCK + 1), F32), align=4, typ=I32)
        return self._emitter.splat(b, less, self._emitter.ints)

    def _values(self, b: Any, word: Any) -> list[Any]:
        """The words of a vector."""
        return [word]

    def _factor(self, b: Any, activations: Any, row: int, part: int) -> Any:
        """A row's word at a step, in every lane."""
        return self._word(b, activations, row, part)

    def _advanced(self, b: Any, total: Any, weight: Any, factor: Any) -> Any:
        """The sums with four products added."""
        return b.call(self._dot, [total, weight, factor])

    def _begin_span(self, b: Any) -> None:
        """The sum of a span's integers."""
        with b.goto_entry_block():
            self._sum = b.alloca(self._emitter.ints)
        b.store(self._emitter.whole(0), self._sum)

    def _keep(self, b: Any, whole: Any, target: Any, k: Any) -> None:
        known = b.load(self._sum, typ=self._emitter.ints)
        b.store(b.add(known, whole), self._sum)
        b.store(b.trunc(whole, self._fours), at(b, target, k, I8), align=1)

    def _end_span(self, b: Any, kept: Any) -> None:
        """Stores the initial value of sums after the scale."""
        total = b.call(self._total, [b.load(self._sum, typ=self._emitter.ints)])
        less = b.mul(total, ir.Constant(I32, -self.offset))
        b.store(less, at(b, kept, i64(1), F32), align=4)
