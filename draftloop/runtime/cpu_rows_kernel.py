"""The operations between the matrices of a decoder, row by row: LLVM IR, built with llvmlite.

Importing this module requires llvmlite; `cpu_stack_kernel` builds a whole decoder with it.
"""

from __future__ import annotations

from typing import Any

import torch
from llvmlite import ir

from draftloop.runtime.llvm import F32, I64, PTR, FormatEmitter, at, i64, loop
from draftloop.runtime.vector_unit import VectorUnit


class RowsEmitter(FormatEmitter):
    """Emits functions over dense rows, in float32 with the rounding of torch's operations.

    Every width is a multiple of the unit's lanes.
    """

    def __init__(self, unit: VectorUnit, dtype: torch.dtype) -> None:
        super().__init__(unit, dtype)
        self.root = self.declare("llvm.sqrt.f32", F32, [F32])

    def emit_norm(self) -> Any:
        """norm(x, weight, out, rows, width, epsilon): RMSNorm, rounded before times weight."""
        function, b = self.define("norm", [PTR, PTR, PTR, I64, I64, F32])
        x, weight, out, rows, width, epsilon = function.args
        step = i64(self.unit.lanes)
        with b.goto_entry_block():
            squares = b.alloca(self.floats)
        with loop(b, i64(0), rows) as row:
            start = b.mul(row, width)
            b.store(self.constant(0.0), squares)
            with loop(b, i64(0), width, step) as column:
                value = self.load(b, x, b.add(start, column))
                known = b.load(squares, typ=self.floats)
                b.store(b.call(self.fma, [value, value, known]), squares)
            total = self.sum_of_lanes(b, b.load(squares, typ=self.floats))
            mean = b.fdiv(total, b.sitofp(width, F32))
            root = b.call(self.root, [b.fadd(mean, epsilon)])
            factor = self.splat(b, b.fdiv(ir.Constant(F32, 1.0), root), self.floats)
            with loop(b, i64(0), width, step) as column:
                place = b.add(start, column)
                scaled = self.nearest(b, b.fmul(self.load(b, x, place), factor))
                self.store(b, b.fmul(scaled, self.load(b, weight, column)), out, place)
        b.ret_void()
        return function

    def emit_add(self) -> Any:
        """add(x, delta, count): x += delta."""
        function, b = self.define("add", [PTR, PTR, I64])
        x, delta, count = function.args
        with loop(b, i64(0), count, i64(self.unit.lanes)) as place:
            total = b.fadd(self.load(b, x, place), self.load(b, delta, place))
            self.store(b, total, x, place)
        b.ret_void()
        return function

    def emit_narrow(self) -> Any:
        """narrow(values, out, count): float32 to the format."""
        function, b = self.define("narrow", [PTR, PTR, I64])
        values, out, count = function.args
        with loop(b, i64(0), count, i64(self.unit.lanes)) as place:
            value = b.load(at(b, values, place, F32), align=4, typ=self.floats)
            self.store(b, value, out, place)
        b.ret_void()
        return function

    def emit_gate(self) -> Any:
        """gate(gates, out, rows, width): SiLU of the first half of a row times the second."""
        function, b = self.define("gate", [PTR, PTR, I64, I64])
        gates, out, rows, width = function.args
        with loop(b, i64(0), rows) as row:
            first, target = b.mul(row, b.mul(width, i64(2))), b.mul(row, width)
            with loop(b, i64(0), width, i64(self.unit.lanes)) as column:
                place = b.add(first, column)
                gate, up = self.load(b, gates, place), self.load(b, gates, b.add(place, width))
                self.store(b, self.gated(b, gate, up), out, b.add(target, column))
        b.ret_void()
        return function

    def emit_rope(self, *, widened: bool) -> Any:
        """turn(source, cosines, sines, out, dim): RoPE on one head of one row.

        The result is rounded to the format, and stored in it, or as float32 if `widened`.
        """
        function, b = self.define("turn_wide" if widened else "turn", [PTR, PTR, PTR, PTR, I64])
        source, cosines, sines, out, dim = function.args
        half = b.sdiv(dim, i64(2))
        with loop(b, i64(0), half, i64(self.unit.lanes)) as low_place:
            high_place = b.add(low_place, half)
            low, high = self.load(b, source, low_place), self.load(b, source, high_place)
            pairs = ((low_place, low, b.fneg(high)), (high_place, high, low))
            for place, value, other in pairs:
                straight = self.nearest(b, b.fmul(value, self.load(b, cosines, place)))
                across = self.nearest(b, b.fmul(other, self.load(b, sines, place)))
                rotated = b.fadd(straight, across)
                rotated = self.nearest(b, rotated) if widened else rotated
                self.store_as(b, rotated, out, place, widened=widened)
        b.ret_void()
        return function
