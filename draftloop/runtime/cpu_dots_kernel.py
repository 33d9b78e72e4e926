"""Dot products of pairs of bfloat16 (AVX512-BF16) for the kernel of `cpu_linear`: LLVM IR.

One instruction multiplies words of two weights by a word of two activations and adds both products
to float32 sums: twice the multiply-adds of `Lines`, without conversions. Importing this module
requires llvmlite.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from draftloop.runtime.cpu_lines_kernel import Lines
from draftloop.runtime.llvm import FormatEmitter


class _BFloat16(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat type, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"


class Dots(Lines):
    """`Lines` whose words are multiplied whole; rows are packed as they are.

    The processor fixes the order in which the two products of a word are added, and treats
    subnormal values as zeros. As everywhere, an output depends neither on other rows nor on the
    row's place.
    """

    name = "dots"
    parts = 1
    wide_rows = 14
    # Tiles of more rows are one vector wide and a tenth slower in the cache, but memory keeps up:
    # of two of eight rows the first would wait for it, and the second leave it idle.
    max_rows = 20

    def __init__(self, emitter: FormatEmitter) -> None:
        lanes = emitter.unit.lanes
        self._pairs = ir.VectorType(_BFloat16(), 2 * lanes)
        operands = [emitter.floats, self._pairs, self._pairs]
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
        self._dot = emitter.declare(name, emitter.floats, operands)
        super().__init__(emitter)

    def _values(self, b: Any, word: Any) -> list[Any]:
        """The pairs of a vector."""
        return [b.bitcast(word, self._pairs)]

    def _factor(self, b: Any, activations: Any, row: int, part: int) -> Any:
        """A row's pair at a step, in every lane."""
        return b.bitcast(self._word(b, activations, row, part), self._pairs)

    def _advanced(self, b: Any, total: Any, weight: Any, factor: Any) -> Any:
        """The sums with one pair's products added."""
        return b.call(self._dot, [total, weight, factor])
