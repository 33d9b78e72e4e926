"""4-bit weights for the kernel of `cpu_linear`: LLVM IR, built with llvmlite.

Half the bytes of `cpu_bytes_kernel`, and integers as there: a word's nibbles become bytes, or pairs
of 16 bits, in a register. Each group along k has scales of its own, and is a span: its sum is
scaled and added to those of the groups before in float32. Importing this module requires llvmlite.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from draftloop.runtime.cpu_byte_dots_kernel import ByteDots
from draftloop.runtime.cpu_bytes_kernel import Bytes
from draftloop.runtime.cpu_linear_way import WORD_BITS
from draftloop.runtime.llvm import FormatEmitter, ceil, i64
from draftloop.runtime.quantization import GROUP

BITS = 4
VALUES = WORD_BITS // BITS  # of a word
SPAN_STEPS = GROUP // VALUES
BLOCK_STEPS = 4 * SPAN_STEPS  # so long that memory is read in a row
LOWER = 0x0F0F0F0F  # of every byte of a word


class _Groups:
    """Scales stored strip by strip, and within a strip group by group."""

    def scales(self, b: Any, strip: Any, step: Any, steps: Any) -> Any:
        """Number of strips times groups, plus this strip's groups, that are stored before."""
        groups = ceil(b, steps, i64(SPAN_STEPS))
        return b.add(b.mul(strip, groups), b.sdiv(step, i64(SPAN_STEPS)))


class Nibbles(_Groups, Bytes):
    """`Bytes` of weights between -8 and 7, for activations of 8 bits.

    Each half of a word holds four values of k; one or two shifts turn a nibble of each half into a
    pair of 16 bits.
    """

    name = "nibbles"
    values, parts, block, span = VALUES, VALUES // 2, BLOCK_STEPS, SPAN_STEPS
    products = 1

    def __init__(self, emitter: FormatEmitter) -> None:
        super().__init__(emitter, bits=8)

    @property
    def wide_rows(self) -> int:
        """One row less than `Lines` where registers are few: a fifth would push out sums."""
        return super().wide_rows if self._emitter.unit.registers == 32 else 4

    def _values(self, b: Any, word: Any) -> list[Any]:
        """The pairs in each word of a vector, in order of k."""
        pairs, parts = b.bitcast(word, self._shorts), range(self.parts)
        moved = [b.shl(pairs, self._each(16 - BITS - BITS * part)) for part in parts]
        return [b.ashr(pair, self._each(16 - BITS)) for pair in moved]

    def _each(self, value: int) -> Any:
        """A vector of 16 bits whose lanes all are `value`."""
        return ir.Constant(self._shorts, [value] * (2 * self._emitter.unit.lanes))


class NibbleDots(_Groups, ByteDots):
    """`ByteDots` of weights between -8 and 7.

    The lower nibbles of a word's bytes are four values in order of k, the upper ones the next four.
    """

    name = "nibble_dots"
    offset = 8
    values, parts, block, span = VALUES, 2, BLOCK_STEPS, SPAN_STEPS
    wide_rows = 12

    def _values(self, b: Any, word: Any) -> list[Any]:
        """The words of lower nibbles, and of upper ones."""
        lower = self._emitter.whole(LOWER)
        upper = b.lshr(word, self._emitter.whole(BITS))
        return [b.and_(word, lower), b.and_(upper, lower)]
