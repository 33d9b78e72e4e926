"""4-bit weights for the kernel of `cpu_linear`: LLVM IR, built with llvmlite.

Half the bytes of `cpu_bytes_kernel`, and integers as there: a word's nibbles become bytes in a
register. Each group along k has scales of its own, and is a span: its sum is scaled and added to
those of the groups before in float32. Importing this module requires llvmlite.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from llvmlite import ir

from draftloop.runtime.cpu_byte_dots_kernel import I8, ByteDots
from draftloop.runtime.cpu_linear_way import WORD_BITS
from draftloop.runtime.cpu_lines_kernel import Chains, EmitStep, Lines
from draftloop.runtime.llvm import I16, FormatEmitter, ceil, i64, loop, minimum
from draftloop.runtime.quantization import GROUP

BITS = 4
VALUES = WORD_BITS // BITS  # of a word
SPAN_STEPS = GROUP // VALUES
BLOCK_STEPS = 4 * SPAN_STEPS  # so long that memory is read in a row
LOWER = 0x0F0F0F0F  # of every byte of a word


class NibbleDots(ByteDots):
    """`ByteDots` of weights between -8 and 7.

    The lower nibbles of a word's bytes are four values in order of k, the upper ones the next four.
    """

    name = "nibble_dots"
    offset = 8
    values, parts, block, span = VALUES, 2, BLOCK_STEPS, SPAN_STEPS
    wide_rows = 12

    def scales(self, b: Any, strip: Any, step: Any, steps: Any) -> Any:
        """Number of strips times groups, plus this strip's groups, that are stored before.

        Scales are stored strip by strip, and within a strip group by group.
        """
        groups = ceil(b, steps, i64(SPAN_STEPS))
        return b.add(b.mul(strip, groups), b.sdiv(step, i64(SPAN_STEPS)))

    def _values(self, b: Any, word: Any) -> list[Any]:
        """The words of lower nibbles, and of upper ones."""
        lower = self._emitter.whole(LOWER)
        upper = b.lshr(word, self._emitter.whole(BITS))
        return [b.and_(word, lower), b.and_(upper, lower)]


class NibbleSums(NibbleDots):
    """`NibbleDots` for CPUs without an instruction that adds four products.

    The one used here multiplies four bytes by four and adds the products in pairs, to 16 bits.
    Products with nibbles are so small that the pairs of some steps are added up before they are
    widened to 32 bits.
    """

    name = "nibble_sums"
    products = 1
    wide_rows, max_rows = Lines.wide_rows, Lines.max_rows  # other tiles than with long dot products
    steps_together = 4  # of two pairs each: 4 * 2 * (2 * 15 * 127) < 2^15

    def _declare_dot(self, emitter: FormatEmitter) -> None:
        lanes = emitter.unit.lanes
        self._bytes = ir.VectorType(I8, 4 * lanes)
        shorts = ir.VectorType(I16, 2 * lanes)
        name = "llvm.x86.avx512.pmaddubs.w.512" if lanes == 16 else "llvm.x86.avx2.pmadd.ub.sw"
        self._dot = emitter.declare(name, shorts, [self._bytes] * 2)

    def _advanced(self, b: Any, total: Any, weight: Any, factor: Any) -> Any:
        """Sums of 16 bits with the pairs of four products added."""
        pairs = b.call(self._dot, [b.bitcast(weight, self._bytes), b.bitcast(factor, self._bytes)])
        return b.bitcast(b.add(b.bitcast(total, self._shorts), pairs), self._emitter.ints)

    def _emit_steps(
        self, b: Any, emit_step: EmitStep, chains: Chains, begun: Any, stop: Any
    ) -> None:
        """Adds up some steps in 16 bits at a time, then widens."""
        with b.goto_entry_block():
            parts = [[b.alloca(self.chain) for _ in row] for row in chains]
        ones = ir.Constant(self._shorts, [1] * (2 * self._emitter.unit.lanes))
        with loop(b, begun, stop, i64(self.steps_together)) as first:
            for part in chain.from_iterable(parts):
                b.store(self._emitter.whole(0), part)
            with loop(b, first, minimum(b, b.add(first, i64(self.steps_together)), stop)) as step:
                emit_step(parts, step, True)
            for total, part in zip(
                chain.from_iterable(chains), chain.from_iterable(parts), strict=True
            ):
                shorts = b.bitcast(b.load(part, typ=self.chain), self._shorts)
                widened = b.call(self._pairs, [shorts, ones])
                b.store(b.add(b.load(total, typ=self.chain), widened), total)
