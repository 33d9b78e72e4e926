"""8-bit weights for the kernel of `cpu_linear`: LLVM IR, built with llvmlite.

Activations are rounded to integers, so that sums are exact: the same in any order, on any CPU.
Importing this module requires llvmlite.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from draftloop.runtime.cpu_lines_kernel import BLOCK, FROM_L2, ROW_FLOATS, SPAN_FLOATS, Lines
from draftloop.runtime.llvm import (
    F32,
    I16,
    I32,
    I64,
    PTR,
    ROUNDER,
    FormatEmitter,
    at,
    i64,
    loop,
    minimum,
    single,
)
from draftloop.runtime.quantization import SPAN

# Bits of a float32: position of the exponent, mask without the sign, and a NaN.
EXPONENT, UNSIGNED, NO_NUMBER = 23, 0x7FFFFFFF, 0x7FC00000
SPECIAL = 255  # the exponent of infinities and NaN
BITS, BIAS = 15, 127
LEAST = 1e-30  # the largest value of a row that is scaled to fewer bits, at least


class Bytes(Lines):
    """`Lines` for integers: weights between -127 and 127 with a scale per output.

    Activations along a block of k are scaled by their largest value and rounded. To 16 bits: by a
    power of two, so that the largest takes 15 bits and a block's sum of products stays below 2^31;
    bfloat16 values within a factor of 128 of the largest are exact, smaller ones get the same
    resolution. To 8 bits: the largest becomes 127. At the end of a block, its sum is scaled and
    added in float32 to those of the blocks before.

    A word holds the values of four steps of k, with the second and third exchanged, so that one or
    two shifts turn it into pairs of 16 bits.
    """

    name = "bytes"
    values = 4  # of a word of weights
    parts = 2  # pairs
    block = SPAN // values

    def __init__(self, emitter: FormatEmitter, bits: int) -> None:
        """`bits` of activations: 16 or 8."""
        self._bits = bits
        lanes = emitter.unit.lanes
        self._shorts = ir.VectorType(I16, 2 * lanes)
        name = "llvm.x86.avx512.pmaddw.d.512" if lanes == 16 else "llvm.x86.avx2.pmadd.wd"
        self._pairs = emitter.declare(name, emitter.ints, [self._shorts, self._shorts])
        name = f"llvm.vector.reduce.umax.v{lanes}i32"
        self._largest = emitter.declare(name, I32, [emitter.ints])
        super().__init__(emitter)

    @property
    def max_rows(self) -> int:
        """Where registers allow it, those of one vector's tile, as `Dots`."""
        return 20 if self._emitter.unit.registers == 32 else self.wide_rows

    @property
    def step_words(self) -> int:
        """Words of activations per step: those of as many values as a word of weights holds."""
        return self.values // self._emitter.depth

    @property
    def chain(self) -> Any:
        """Integers."""
        return self._emitter.ints

    def pack(self, b: Any, x: Any, packed: Any, rows: Any, pitch: Any, steps: Any) -> None:
        """Converts `steps` steps of rows, which are `pitch` steps apart, to integers."""
        depth, values = (b.mul(count, i64(self.values)) for count in (pitch, steps))
        b.call(self._pack, [x, packed, rows, depth, values])

    def _begun(self, b: Any, start: Any, row: Any) -> Any:
        """A block's sum starts at 0."""
        return self._emitter.whole(0)

    def _ended(self, b: Any, total: Any, start: Any, row: Any, scales: Any) -> Any:
        """The sums so far plus the block's scaled sum."""
        floats = self._emitter.floats
        of_row = b.load(at(b, row, i64(BLOCK), F32), align=4, typ=F32)
        scaled = b.fmul(b.sitofp(total, floats), self._emitter.splat(b, of_row, floats))
        before, of_outputs = (b.load(place, align=4, typ=floats) for place in (start, scales))
        return b.call(self._emitter.fma, [scaled, of_outputs, before])

    def _values(self, b: Any, word: Any) -> list[Any]:
        """The pairs in each word of a vector, in order of k."""
        eight = ir.Constant(self._shorts, [8] * (2 * self._emitter.unit.lanes))
        pairs = b.bitcast(word, self._shorts)
        return [b.ashr(b.shl(pairs, eight), eight), b.ashr(pairs, eight)]

    def _factor(self, b: Any, activations: Any, row: int, part: int) -> Any:
        """A row's pair of a step, in every lane."""
        return b.bitcast(self._word(b, activations, row, part), self._shorts)

    def _advanced(self, b: Any, total: Any, weight: Any, factor: Any) -> Any:
        """The sums with one pair's products added."""
        return b.add(total, b.call(self._pairs, [weight, factor]))

    def _emit_pack(self) -> Any:
        """pack(x, packed, rows, depth, values): packs `values` values of rows that have `depth`.

        Writes integers and, after BLOCK words, the float32 scale of every span.
        """
        function, b = self._emitter.define(f"{self.name}_pack", [PTR, PTR, I64, I64, I64])
        x, packed, rows, depth, values = function.args
        lanes, span = i64(self._emitter.unit.lanes), i64(self.span * self.values)
        with loop(b, i64(0), rows) as row, loop(b, i64(0), values, span) as begun:
            place = b.add(b.mul(row, depth), begun)
            source = at(b, x, place, self._emitter.scalar)
            target = at(b, packed, b.mul(row, i64(ROW_FLOATS)), F32)
            number = b.mul(b.sdiv(begun, span), i64(SPAN_FLOATS))
            kept = at(b, target, b.add(number, i64(BLOCK)), F32)
            count = minimum(b, span, b.sub(values, begun))
            inverse, scale = self._scales(b, self._largest_of(b, source, count))
            b.store(scale, kept, align=4)
            factor = self._emitter.splat(b, inverse, self._emitter.floats)
            self._begin_span(b)
            with loop(b, i64(0), count, lanes) as k:
                scaled = b.fmul(self._emitter.load(b, source, k), factor)
                self._keep(b, self._whole(b, scaled), target, b.add(begun, k))
            self._end_span(b, kept)
        b.ret_void()
        return function

    def _begin_span(self, b: Any) -> None:
        """Nothing to do here."""

    def _end_span(self, b: Any, kept: Any) -> None:
        """Nothing to do here."""

    def _keep(self, b: Any, whole: Any, target: Any, k: Any) -> None:
        """Stores a vector of a row's integers, for the values from index `k` on."""
        b.store(b.trunc(whole, self._emitter.shorts), at(b, target, k, I16), align=2)

    def _largest_of(self, b: Any, source: Any, values: Any) -> Any:
        """The bits of the largest absolute value; infinity is larger than all others."""
        ints, lanes = self._emitter.ints, i64(self._emitter.unit.lanes)
        with b.goto_entry_block():
            most = b.alloca(ints)
        b.store(self._emitter.whole(0), most)
        with loop(b, i64(0), values, lanes) as k:
            value = b.bitcast(self._emitter.load(b, source, k), ints)
            value = b.and_(value, self._emitter.whole(UNSIGNED))
            known = b.load(most, typ=ints)
            b.store(b.select(b.icmp_signed(">", value, known), value, known), most)
            # the next block, or the weights push it out of the cache meanwhile
            further = at(b, source, b.add(k, i64(BLOCK)), self._emitter.scalar)
            self._fetch(b, further, FROM_L2)
        return b.call(self._largest, [b.load(most, typ=ints)])

    def _scales(self, b: Any, largest: Any) -> tuple[Any, Any]:
        """The factor that values are multiplied by, and its inverse, float32."""
        exponent = b.lshr(largest, ir.Constant(I32, EXPONENT))
        if self._bits == 16:
            inverse, scale = self._powers(b, exponent)
        else:
            value, least = b.bitcast(largest, F32), ir.Constant(F32, single(LEAST))
            value = b.select(b.fcmp_ordered("<", value, least), least, value)
            most = ir.Constant(F32, float(self._most))
            inverse, scale = b.fdiv(most, value), b.fdiv(value, most)
        special = b.icmp_unsigned("==", exponent, ir.Constant(I32, SPECIAL))
        no_number = b.bitcast(ir.Constant(I32, NO_NUMBER), F32)
        return inverse, b.select(special, no_number, scale)

    @staticmethod
    def _powers(b: Any, exponent: Any) -> tuple[Any, Any]:
        """The power of two that brings values of at most this exponent below 2^15, and its inverse.

        The exponent is that of a float32's bits.
        """
        least = ir.Constant(I32, BITS)
        exponent = b.select(b.icmp_unsigned(">", exponent, least), exponent, least)
        inverse = b.sub(ir.Constant(I32, 2 * BIAS + BITS - 1), exponent)
        scale = b.sub(exponent, ir.Constant(I32, BITS - 1))
        powers = (b.shl(power, ir.Constant(I32, EXPONENT)) for power in (inverse, scale))
        return tuple(b.bitcast(power, F32) for power in powers)

    @property
    def _most(self) -> int:
        """The largest integer that values are rounded to."""
        return int((1 << (self._bits - 1)) - 1)

    def _whole(self, b: Any, scaled: Any) -> Any:
        """A vector of float32, within the bits or nearly, to the nearest integers."""
        rounder = self._emitter.constant(ROUNDER)
        near = b.bitcast(b.fadd(scaled, rounder), self._emitter.ints)
        whole = b.sub(near, b.bitcast(rounder, self._emitter.ints))
        most = self._emitter.whole(self._most)
        return b.select(b.icmp_signed("<", whole, most), whole, most)
