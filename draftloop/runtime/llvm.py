"""Shared by the compiled CPU kernels: emitting small pieces of LLVM IR, and compiling it.

Importing this module requires llvmlite. The kernels are used through `cpu_linear` and others.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite
import torch
from llvmlite import binding as llvm
from llvmlite import ir

from draftloop.runtime.exponent import EXP2
from draftloop.runtime.vector_unit import VectorUnit

if tuple(map(int, llvmlite.__version__.split(".")[:2])) < (0, 46):
    raise ImportError("llvmlite before 0.46 has typed pointers, which this module does not write")

I1, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))
F32, F64, PTR, VOID = ir.FloatType(), ir.DoubleType(), ir.PointerType(), ir.VoidType()

ROUNDER = 12582912.0  # 1.5 * 2^23: adding and subtracting it rounds a small float32


def single(value: float) -> float:
    """The value rounded to float32."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def i64(value: int) -> Any:
    return ir.Constant(I64, value)


def at(b: Any, base: Any, index: Any, element: Any) -> Any:
    return b.gep(base, [index], source_etype=element)


def ceil(b: Any, dividend: Any, divisor: Any) -> Any:
    return b.sdiv(b.add(dividend, b.sub(divisor, i64(1))), divisor)


def maximum(b: Any, left: Any, right: Any) -> Any:
    return b.select(b.icmp_signed(">", left, right), left, right)


def minimum(b: Any, left: Any, right: Any) -> Any:
    return b.select(b.icmp_signed("<", left, right), left, right)


@contextmanager
def loop(b: Any, start: Any, stop: Any, step: Any = None) -> Iterator[Any]:
    """Emit `for i in range(start, stop, step)` around the code emitted inside; yields `i`."""
    with b.goto_entry_block():
        counter = b.alloca(I64)  # becomes a register: only allocas of the entry block do
    head, body, done = (b.append_basic_block(name) for name in ("head", "body", "done"))
    b.store(start, counter)
    b.branch(head)
    b.position_at_end(head)
    i = b.load(counter, typ=I64)
    b.cbranch(b.icmp_signed("<", i, stop), body, done)
    b.position_at_end(body)
    yield i
    b.store(b.add(i, i64(1) if step is None else step), counter)
    b.branch(head)
    b.position_at_end(done)


class Emitter:
    """An LLVM module under construction for one vector unit.

    `entry` is its public function, `part` another one, which other kernels call.
    """

    entry: str
    part = ""

    def __init__(self, unit: VectorUnit) -> None:
        self.unit = unit
        self.floats = ir.VectorType(F32, unit.lanes)
        self.ints = ir.VectorType(I32, unit.lanes)
        self.module = ir.Module(f"draftloop_{self.entry}")
        self.fma = self.declare(f"llvm.fma.v{unit.lanes}f32", self.floats, [self.floats] * 3)

    def declare(self, name: str, result: Any, arguments: list[Any]) -> Any:
        """Declares a function that is defined elsewhere or later; one per name."""
        declared = self.module.globals.get(name)
        return declared or ir.Function(self.module, ir.FunctionType(result, arguments), name)

    def define(self, name: str, arguments: list[Any], returning: Any = VOID) -> tuple[Any, Any]:
        """Defines a function of the module, by default without result; also returns its builder."""
        function = self.declare(name, returning, arguments)
        if name not in (self.entry, self.part):
            function.linkage = "internal"
            function.attributes.add("noinline")
        return function, ir.IRBuilder(function.append_basic_block())

    def constant(self, value: float) -> Any:
        """A vector that holds `value`, rounded to float32, in every lane."""
        return ir.Constant(self.floats, [single(value)] * self.unit.lanes)

    def whole(self, value: int) -> Any:
        """A vector that holds an integer in every lane."""
        return ir.Constant(self.ints, [value] * self.unit.lanes)

    def sum_of_lanes(self, b: Any, vector: Any) -> Any:
        """The sum of a vector's lanes, by adding halves until one lane is left."""
        width = self.unit.lanes
        while width > 1:
            width //= 2
            nothing = ir.Constant(vector.type, ir.Undefined)
            indices = ir.VectorType(I32, width)
            low, high = (
                b.shuffle_vector(vector, nothing, ir.Constant(indices, list(range(at, at + width))))
                for at in (0, width)
            )
            vector = b.fadd(low, high)
        return b.extract_element(vector, ir.Constant(I32, 0))

    def sums_of_lanes(self, b: Any, vectors: Sequence[Any]) -> Any:
        """`sum_of_lanes` of as many vectors as there are lanes, as one vector, with the same bits.

        Halves are added here, too: each time, two vectors become one.
        """
        width = self.unit.lanes
        places = _places_of_sums(width)
        vectors = [vectors[lane] for lane in sorted(range(width), key=places.__getitem__)]
        while width > 1:
            width //= 2
            masks = [ir.Constant(self.ints, _halves(self.unit.lanes, width, n)) for n in (0, 1)]
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [b.fadd(*(b.shuffle_vector(*pair, mask) for mask in masks)) for pair in pairs]
        return vectors[0]

    def max_of_lanes(self, b: Any, vector: Any) -> Any:
        """The maximum of the lanes, in all lanes."""
        width = self.unit.lanes
        while width > 1:
            width //= 2
            turned = [(lane + width) % self.unit.lanes for lane in range(self.unit.lanes)]
            other = b.shuffle_vector(vector, vector, ir.Constant(self.ints, turned))
            vector = b.select(b.fcmp_ordered(">", vector, other), vector, other)
        return vector

    def exponential(self, b: Any, x: Any) -> Any:
        """e^x for x <= 0."""
        power = b.fmul(x, self.constant(math.log2(math.e)))
        floor = self.constant(-126.0)
        power = b.select(b.fcmp_ordered(">", power, floor), power, floor)
        whole = b.fsub(b.fadd(power, self.constant(ROUNDER)), self.constant(ROUNDER))
        fraction = b.fsub(power, whole)
        value = self.constant(EXP2[0])
        for coefficient in EXP2[1:]:
            value = b.call(self.fma, [value, fraction, self.constant(coefficient)])
        shift = ir.Constant(self.ints, [23] * self.unit.lanes)
        exponent = b.shl(b.fptosi(whole, self.ints), shift)
        return b.bitcast(b.add(b.bitcast(value, self.ints), exponent), self.floats)

    def splat(self, b: Any, scalar: Any, vector: Any) -> Any:
        """A vector whose lanes all hold `scalar`."""
        undefined = ir.Constant(vector, ir.Undefined)
        first = b.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return b.shuffle_vector(first, undefined, ir.Constant(self.ints, None))

    def fields(
        self, b: Any, record: Any, names: Sequence[str], pointers: Sequence[str]
    ) -> list[Any]:
        """Loads a record of 64-bit fields."""
        return [
            b.load(at(b, record, i64(i), I64), typ=PTR if name in pointers else I64)
            for i, name in enumerate(names)
        ]

    def record(
        self, b: Any, address: Any, names: Sequence[str], pointers: Sequence[str]
    ) -> dict[str, Any]:
        """The fields of a record by their names."""
        return dict(zip(names, self.fields(b, address, names, pointers), strict=True))

    def call_one_of(
        self, b: Any, functions: dict[int, Any], key: Any, arguments: list[Any]
    ) -> None:
        """Calls the one of `functions` with this key; none if there is no such key."""
        done = b.append_basic_block("done")
        choice = b.switch(key, done)
        for value, function in functions.items():
            choice.add_case(i64(value), case := b.append_basic_block(f"case{value}"))
            b.position_at_end(case)
            b.call(function, arguments)
            b.branch(done)
        b.position_at_end(done)


class FormatEmitter(Emitter):
    """An emitter for weights and activations of one format; arithmetic is in float32."""

    def __init__(self, unit: VectorUnit, dtype: torch.dtype) -> None:
        super().__init__(unit)
        self.narrow = dtype is torch.bfloat16
        self.depth = 4 // dtype.itemsize  # values in a word of 32 bits
        self.scalar = I16 if self.narrow else F32
        self.shorts = ir.VectorType(I16, unit.lanes)

    def rounded(self, b: Any, sums: Any) -> Any:
        """float32 to the format, rounded to nearest, ties to even; NaN stays NaN."""
        if not self.narrow:
            return sums
        return b.trunc(b.lshr(self._rounded_bits(b, sums), self.whole(16)), self.shorts)

    def nearest(self, b: Any, sums: Any) -> Any:
        """The values rounded to the format, as float32."""
        if not self.narrow:
            return sums
        return b.bitcast(b.and_(self._rounded_bits(b, sums), self.whole(0xFFFF0000)), self.floats)

    def _rounded_bits(self, b: Any, sums: Any) -> Any:
        bits = b.bitcast(sums, self.ints)
        odd = b.and_(b.lshr(bits, self.whole(16)), self.whole(1))
        near = b.add(b.add(bits, self.whole(0x7FFF)), odd)
        return b.select(b.fcmp_unordered("uno", sums, sums), self.whole(0x7FC00000), near)

    def gated(self, b: Any, gate: Any, up: Any) -> Any:
        """SiLU(gate), rounded, times `up`; both are values of the format."""
        one, sign = self.constant(1.0), self.whole(0x80000000)
        negative = b.bitcast(b.or_(b.bitcast(gate, self.ints), sign), self.floats)
        small = self.exponential(b, negative)
        rising = b.fcmp_ordered(">=", gate, self.constant(0.0))
        share = b.fdiv(b.select(rising, one, small), b.fadd(one, small))
        return b.fmul(self.nearest(b, b.fmul(gate, share)), up)

    def load(self, b: Any, base: Any, index: Any) -> Any:
        """The float32 values of the vector at scalar number `index`."""
        address = at(b, base, index, self.scalar)
        if not self.narrow:
            return b.load(address, align=4, typ=self.floats)
        words = b.zext(b.load(address, align=2, typ=self.shorts), self.ints)
        return b.bitcast(b.shl(words, self.whole(16)), self.floats)

    def store(self, b: Any, values: Any, base: Any, index: Any) -> None:
        """Stores float32 values, rounded, as the vector at scalar number `index`."""
        address = at(b, base, index, self.scalar)
        b.store(self.rounded(b, values), address, align=2 if self.narrow else 4)

    def store_as(self, b: Any, values: Any, base: Any, index: Any, *, widened: bool) -> None:
        """Stores a vector of float32, `widened` as it is, else in the format."""
        if widened:
            b.store(values, at(b, base, index, F32), align=4)
        else:
            self.store(b, values, base, index)

    def emit_copy(self, *, widened: bool) -> Any:
        """copy(source, out, count), `widened` to float32."""
        function, b = self.define("copy_wide" if widened else "copy", [PTR, PTR, I64])
        source, out, count = function.args
        with loop(b, i64(0), count, i64(self.unit.lanes)) as place:
            self.store_as(b, self.load(b, source, place), out, place, widened=widened)
        b.ret_void()
        return function


def _halves(lanes: int, width: int, which: int) -> list[int]:
    """Shuffle indices for two vectors in parts of 2 * `width` lanes: first halves, or second ones.

    Small parts stay within 128 bits, where shuffling is cheapest.
    """
    group = lanes if width >= 4 else 4
    return [
        vector + part + which * width + lane
        for start in range(0, lanes, group)
        for vector in (0, lanes)
        for part in range(start, start + group, 2 * width)
        for lane in range(width)
    ]


@functools.cache
def _places_of_sums(lanes: int) -> list[int]:
    """For each lane of the combined vector, the index of the vector whose sum ends up there."""
    vectors, width = [[place] * lanes for place in range(lanes)], lanes
    while width > 1:
        width //= 2
        mask = _halves(lanes, width, 0)
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [[(left + right)[lane] for lane in mask] for left, right in pairs]
    return vectors[0]


def register_function(name: str, compiled: Callable[[bytes], None], function: str) -> None:
    """Lets modules compiled later declare a function of a compiled module by this name."""
    llvm.add_symbol(name, compiled.engine.get_function_address(function))  # type: ignore[attr-defined]


def address_of(compiled: Callable[[bytes], None]) -> int:
    """Address of a compiled module's entry, for code that was compiled elsewhere."""
    return ctypes.cast(compiled, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def compile_module(text: str, entry: str) -> Callable[[bytes], None]:
    """The function `entry(record)` of a module, which releases the GIL while it runs."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), jit=True
    )
    module = llvm.parse_assembly(text)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    # The loops are written out by hand; the optimiser has only registers to assign.
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(engine.get_function_address(entry))
    function.engine = engine  # type: ignore[attr-defined]  # it owns the code
    return function
