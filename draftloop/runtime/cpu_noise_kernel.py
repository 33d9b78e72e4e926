"""The compiled kernel of `cpu_noise`: LLVM IR, built with llvmlite.

Importing this module requires llvmlite; used through `cpu_noise`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from draftloop.runtime.hashing import GOLDEN_32, MIX_SHIFT, MIX_STEPS
from draftloop.runtime.llvm import (
    F32,
    F64,
    I32,
    I64,
    PTR,
    Emitter,
    at,
    compile_module,
    i64,
    loop,
    minimum,
)
from draftloop.runtime.team import Team
from draftloop.runtime.vector_unit import VectorUnit

MIN_VALUES_PER_THREAD = 1 << 16  # for less, waking a thread costs more than it saves

# `keys`: uint64 [rows]; `out`: float32 [rows, width], a width that is a multiple of the lanes.
CALL_FIELDS = ("keys", "out", "rows", "width", "threads")
CALL = struct.Struct("5q")
POINTERS = ("keys", "out")

PART = 512  # values between the two logarithms, in the first-level cache

# log(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2)), s = f / (2 + f): R by powers of s^2, below 2^-58
# (FreeBSD's msun, e_log.c). Two sums of every other power have shorter chains than one.
EVEN_POWERS = (3.999999999940941908e-01, 2.222219843214978396e-01, 1.531383769920937332e-01)
ODD_POWERS = (
    6.666666666666735130e-01, 2.857142874366239149e-01, 1.818357216161805012e-01,
    1.479819860511658591e-01,
)  # fmt: skip
# ln 2 in two parts, so that integer multiples of the first are exact.
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
MANTISSA = (1 << 52) - 1
ROOT_HALF, ONE = 0x3FE6A09E00000000, 0x3FF0000000000000  # bits of about sqrt(1/2), and of 1
WHOLE = 0x4330000000000000  # bits of 2^52: with a small whole number n in them, they are 2^52 + n


class _NoiseEmitter(Emitter):
    """Emits the module.

    The two logarithms are separate loops: a core has a limited number of instructions in flight,
    and those of a long chain mostly wait for one another.
    """

    entry = "draw"

    def __init__(self, unit: VectorUnit) -> None:
        super().__init__(unit)
        self.team = Team(self)
        self.half = unit.lanes // 2
        self.doubles = ir.VectorType(F64, self.half)
        self.longs = ir.VectorType(I64, self.half)
        name = f"llvm.fma.v{self.half}f64"
        self.fma_of_doubles = self.declare(name, self.doubles, [self.doubles] * 3)

    def emit_exponentials(self) -> Any:
        """exponentials(key, out, start, stop): -log(1 - (h + 1/2) / 2^32) of these tokens."""
        function, b = self.define("exponentials", [I64, PTR, I64, I64])
        key, out, first, stop = function.args
        low, high = (b.trunc(part, I32) for part in (key, b.lshr(key, i64(32))))
        low, high = (self.splat(b, part, self.ints) for part in (low, high))
        lanes = ir.Constant(self.ints, list(range(self.unit.lanes)))
        with loop(b, first, stop, i64(self.unit.lanes)) as token:
            tokens = b.add(self.splat(b, b.trunc(token, I32), self.ints), lanes)
            mixed = self._mix(b, b.add(b.mul(tokens, self.whole(GOLDEN_32)), low))
            hashed = self._mix(b, b.xor(mixed, high))
            place = b.sub(token, first)
            for part in (0, self.half):
                value = b.fneg(self._log(b, self._uniform(b, hashed, part)))
                b.store(value, at(b, out, b.add(place, i64(part)), F64), align=8)
        b.ret_void()
        return function

    def emit_gumbels(self) -> Any:
        """gumbels(values, out, count): -log of float64 values as float32."""
        function, b = self.define("gumbels", [PTR, PTR, I64])
        values, out, count = function.args
        floats = ir.VectorType(F32, self.half)
        with loop(b, i64(0), count, i64(self.half)) as place:
            value = b.load(at(b, values, place, F64), align=8, typ=self.doubles)
            drawn = b.fptrunc(b.fneg(self._log(b, value)), floats)
            b.store(drawn, at(b, out, place, F32), align=4)
        b.ret_void()
        return function

    def emit_row(self) -> Any:
        """row(key, out, width): the noise of one position."""
        exponentials, gumbels = self.emit_exponentials(), self.emit_gumbels()
        function, b = self.define("row", [I64, PTR, I64])
        key, out, width = function.args
        with b.goto_entry_block():
            values = b.alloca(F64, PART)
        with loop(b, i64(0), width, i64(PART)) as start:
            stop = minimum(b, width, b.add(start, i64(PART)))
            b.call(exponentials, [key, values, start, stop])
            b.call(gumbels, [values, at(b, out, start, F32), b.sub(stop, start)])
        b.ret_void()
        return function

    def emit_draw(self) -> str:
        """draw(call), the entry; returns the text of the module."""
        row_of = self.emit_row()
        share, b = self.define("share", [PTR])
        known = self.record(b, share.args[0], CALL_FIELDS, POINTERS)
        start, stop = self.team.own_part(b, known["rows"])
        with loop(b, start, stop) as row:
            key = b.load(at(b, known["keys"], row, I64), typ=I64)
            out = at(b, known["out"], b.mul(row, known["width"]), F32)
            b.call(row_of, [key, out, known["width"]])
        b.ret_void()
        function, b = self.define(self.entry, [PTR])
        (call,) = function.args
        known = self.record(b, call, CALL_FIELDS, POINTERS)
        self.team.run_rows(b, share, call, known, MIN_VALUES_PER_THREAD)
        b.ret_void()
        return str(self.module)

    def _mix(self, b: Any, value: Any) -> Any:
        for shift, factor in MIX_STEPS:
            value = b.mul(b.xor(value, b.lshr(value, self.whole(shift))), self.whole(factor))
        return b.xor(value, b.lshr(value, self.whole(MIX_SHIFT)))

    def _uniform(self, b: Any, hashed: Any, part: int) -> Any:
        """1 - (h + 1/2) / 2^32 of half a vector, exactly."""
        lanes = ir.Constant(ir.VectorType(I32, self.half), list(range(part, part + self.half)))
        half = b.shuffle_vector(hashed, hashed, lanes)
        sign = ir.Constant(half.type, [1 << 31] * self.half)
        centred = b.sitofp(b.xor(half, sign), self.doubles)  # h - 2^31
        return b.fmul(b.fsub(self._double(2.0**31 - 0.5), centred), self._double(2.0**-32))

    def _log(self, b: Any, value: Any) -> Any:
        """The natural logarithm of normal numbers above 0, to less than one unit in the last."""
        bits = b.add(b.bitcast(value, self.longs), self._long(ONE - ROOT_HALF))
        power = b.or_(b.lshr(bits, self._long(52)), self._long(WHOLE))
        exponent = b.fsub(b.bitcast(power, self.doubles), self._double(2.0**52 + 1023))
        mantissa = b.add(b.and_(bits, self._long(MANTISSA)), self._long(ROOT_HALF))
        f = b.fsub(b.bitcast(mantissa, self.doubles), self._double(1.0))
        s = b.fdiv(f, b.fadd(f, self._double(2.0)))
        z = b.fmul(s, s)
        w = b.fmul(z, z)
        even = b.fmul(w, self._polynomial(b, w, EVEN_POWERS))
        rest = self._fma(b, z, self._polynomial(b, w, ODD_POWERS), even)
        square = b.fmul(b.fmul(self._double(0.5), f), f)
        low = b.fmul(exponent, self._double(LN2_LOW))
        small = b.fsub(self._fma(b, s, b.fadd(square, rest), low), square)
        return self._fma(b, exponent, self._double(LN2_HIGH), b.fadd(small, f))

    def _polynomial(self, b: Any, x: Any, coefficients: Sequence[float]) -> Any:
        value = self._double(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            value = self._fma(b, value, x, self._double(coefficient))
        return value

    def _fma(self, b: Any, left: Any, right: Any, added: Any) -> Any:
        return b.call(self.fma_of_doubles, [left, right, added])

    def _long(self, value: int) -> Any:
        return ir.Constant(self.longs, [value] * self.half)

    def _double(self, value: float) -> Any:
        return ir.Constant(self.doubles, [value] * self.half)


@functools.cache
def compiled(unit: VectorUnit) -> Callable[[bytes], None]:
    """The kernel: a function of one packed `CALL`."""
    return compile_module(_NoiseEmitter(unit).emit_draw(), _NoiseEmitter.entry)
