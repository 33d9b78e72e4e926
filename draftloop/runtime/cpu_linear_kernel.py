"""The compiled kernel of `cpu_linear`: LLVM IR, written with llvmlite and compiled in the process.

One function per weight format and vector unit, `linear(call)`, multiplies a block of rows by a
packed matrix. Importing this module requires llvmlite; `cpu_linear` is the way in.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from llvmlite import binding as llvm  # type: ignore[import-untyped]
from llvmlite import ir

if llvm.llvm_version_info[0] < 16:
    raise ImportError("llvmlite before 0.45 has typed pointers, which this module does not write")

I1, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))
F32, PTR, VOID = ir.FloatType(), ir.PointerType(), ir.VoidType()

STRIP_VECTORS = 4  # a strip, the unit of work of a thread, is this many vectors of outputs
PREFETCH_BYTES = 1024  # ahead of each weight stream; the hardware's own stops at a page's end

PACKED_ROWS_BYTES = 512 * 1024  # widened activations at any time: they should stay in the L2 cache
MIN_WORK_PER_THREAD = 1 << 21  # multiply-adds; for less, waking a thread costs more than it saves
WEIGHT_WORK = 4  # multiply-adds that take as long as fetching a weight

CALL = struct.Struct("8q")
CALL_FIELDS = ("x", "weights", "bias", "out", "rows", "steps", "outputs", "threads")
JOB_FIELDS = ("call", "packed", "first", "rows")  # a call's rows [first, first + rows)
POINTERS = ("x", "weights", "bias", "out", "call", "packed")
OPENMP_FUNCTIONS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


class VectorUnit(NamedTuple):
    """What the generator must know of a CPU's vector registers."""

    lanes: int
    registers: int

    @property
    def strip(self) -> int:
        """Outputs in a strip; weights and bias are padded to a multiple of it."""
        return STRIP_VECTORS * self.lanes

    def vectors(self, rows: int) -> int:
        """Widest tile for `rows` rows whose sums, weights and one activation fit the registers."""
        for vectors in (4, 2):
            if rows * vectors + vectors + 1 < self.registers:
                return vectors
        return 1

    @property
    def max_rows(self) -> int:
        """Rows of the largest tile two vectors wide, less what the compiler needs for itself."""
        return 12 if self.registers == 32 else 6


AVX512 = VectorUnit(lanes=16, registers=32)
AVX2 = VectorUnit(lanes=8, registers=16)


@functools.cache
def vector_unit() -> VectorUnit | None:
    """The vector unit to generate for; None where no kernel of this module can run."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    features = llvm.get_host_cpu_features()
    if all(features.get(name) for name in ("avx512f", "avx512bw", "avx512vl", "avx512dq")):
        return AVX512
    return AVX2 if features.get("avx2") and features.get("fma") else None


def _i64(value: int) -> Any:
    return ir.Constant(I64, value)


def _at(b: Any, base: Any, index: Any, element: Any) -> Any:
    return b.gep(base, [index], source_etype=element)


def _ceil(b: Any, dividend: Any, divisor: Any) -> Any:
    return b.sdiv(b.add(dividend, b.sub(divisor, _i64(1))), divisor)


def _maximum(b: Any, left: Any, right: Any) -> Any:
    return b.select(b.icmp_signed(">", left, right), left, right)


def _minimum(b: Any, left: Any, right: Any) -> Any:
    return b.select(b.icmp_signed("<", left, right), left, right)


@contextmanager
def _loop(b: Any, start: Any, stop: Any, step: Any = None) -> Iterator[Any]:
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
    b.store(b.add(i, _i64(1) if step is None else step), counter)
    b.branch(head)
    b.position_at_end(done)


class _Emitter:
    """Writes the LLVM module of one weight format for one vector unit.

    A *word* is 32 bits: one float32, or two bfloat16 that follow one another along k. A *step* is
    the part of k that one word spans. Weights lie in panels of `lanes` outputs, [steps][lanes]
    words each; activations are widened to float32 and lie in blocks of rows, [k][rows].
    """

    def __init__(self, unit: VectorUnit, dtype: torch.dtype) -> None:
        self.unit = unit
        self.depth = 2 if dtype is torch.bfloat16 else 1  # values in a word
        self.scalar = I16 if dtype is torch.bfloat16 else F32
        self.floats = ir.VectorType(F32, unit.lanes)
        self.ints = ir.VectorType(I32, unit.lanes)
        self.module = ir.Module("draftloop_cpu_linear")
        scalars = ir.VectorType(self.scalar, unit.lanes)
        self.fma = self.declare(f"llvm.fma.v{unit.lanes}f32", self.floats, [self.floats] * 3)
        self.masked_store = self.declare(
            f"llvm.masked.store.v{unit.lanes}{'i16' if self.depth == 2 else 'f32'}.p0",
            VOID,
            [scalars, PTR, I32, ir.VectorType(I1, unit.lanes)],
        )
        self.prefetch = self.declare("llvm.prefetch.p0", VOID, [PTR, I32, I32, I32])

    def declare(self, name: str, result: Any, arguments: list[Any]) -> Any:
        return ir.Function(self.module, ir.FunctionType(result, arguments), name)

    def define(self, name: str, arguments: list[Any]) -> tuple[Any, Any]:
        """A function of the module returning nothing, and the builder of its body."""
        function = self.declare(name, VOID, arguments)
        if name != "linear":
            function.linkage = "internal"
            function.attributes.add("noinline")
        return function, ir.IRBuilder(function.append_basic_block())

    def splat(self, b: Any, scalar: Any, vector: Any) -> Any:
        undefined = ir.Constant(vector, ir.Undefined)
        first = b.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return b.shuffle_vector(first, undefined, ir.Constant(self.ints, None))

    def values(self, b: Any, word: Any) -> list[Any]:
        """The bits of the float32 values in a word (or in each word of a vector), in order of k."""
        if self.depth == 1:
            return [word]
        lanes = self.unit.lanes if word.type == self.ints else 0
        shift, high = (
            ir.Constant(word.type, [n] * lanes if lanes else n) for n in (16, 0xFFFF0000)
        )
        return [b.shl(word, shift), b.and_(word, high)]

    def rounded(self, b: Any, sums: Any) -> Any:
        """float32 to the format of the output: to the nearest, ties to even, NaN stays NaN."""
        if self.depth == 1:
            return sums

        def constant(value: int) -> Any:
            return ir.Constant(self.ints, [value] * self.unit.lanes)

        bits = b.bitcast(sums, self.ints)
        odd = b.and_(b.lshr(bits, constant(16)), constant(1))
        near = b.add(b.add(bits, constant(0x7FFF)), odd)
        near = b.select(b.fcmp_unordered("uno", sums, sums), constant(0x7FC00000), near)
        return b.trunc(b.lshr(near, constant(16)), ir.VectorType(I16, self.unit.lanes))

    def emit_store(self) -> Any:
        """store(sums, out, outputs, valid, rows, vectors): round [rows][vectors] into `out`.

        Rows of `out` are `outputs` apart; only the first `valid` columns exist.
        """
        function, b = self.define("store", [PTR, PTR, I64, I64, I64, I64])
        sums, out, outputs, valid, rows, vectors = function.args
        lane = ir.Constant(self.ints, list(range(self.unit.lanes)))
        with _loop(b, _i64(0), vectors) as vector:
            column = b.mul(vector, _i64(self.unit.lanes))
            left = self.splat(b, b.trunc(b.sub(valid, column), I32), self.ints)
            mask = b.icmp_signed("<", lane, left)
            with _loop(b, _i64(0), rows) as row:
                index = b.add(b.mul(row, vectors), vector)
                value = b.load(_at(b, sums, index, self.floats), typ=self.floats)
                target = _at(b, out, b.add(b.mul(row, outputs), column), self.scalar)
                align = ir.Constant(I32, 2)
                b.call(self.masked_store, [self.rounded(b, value), target, align, mask])
        b.ret_void()
        return function

    def emit_tile(self, rows: int, store: Any) -> Any:
        """tile(x, weights, bias, out, steps, outputs, valid): one strip for a block of `rows`."""
        function, b = self.define(f"tile{rows}", [PTR] * 4 + [I64] * 3)
        x, weights, bias, out, steps, outputs, valid = function.args
        lanes, vectors = self.unit.lanes, self.unit.vectors(rows)
        with b.goto_entry_block():
            sums = b.alloca(self.floats, rows * vectors)
            chains = [[b.alloca(self.floats) for _ in range(vectors)] for _ in range(rows)]
        with _loop(b, _i64(0), _i64(STRIP_VECTORS), _i64(vectors)) as first:
            column = b.mul(first, _i64(lanes))
            panels = [
                _at(b, weights, b.mul(b.add(column, _i64(v * lanes)), steps), I32)
                for v in range(vectors)
            ]
            for v in range(vectors):
                address = _at(b, bias, b.add(column, _i64(v * lanes)), F32)
                start = b.load(address, align=4, typ=self.floats)
                for row in range(rows):
                    b.store(start, chains[row][v])
            with _loop(b, _i64(0), steps) as step:
                self.emit_step(b, x, panels, chains, step)
            for row in range(rows):
                for v in range(vectors):
                    value = b.load(chains[row][v], typ=self.floats)
                    b.store(value, _at(b, sums, _i64(row * vectors + v), self.floats))
            target, left = _at(b, out, column, self.scalar), b.sub(valid, column)
            b.call(store, [sums, target, outputs, left, _i64(rows), _i64(vectors)])
        b.ret_void()
        return function

    def emit_step(
        self, b: Any, x: Any, panels: list[Any], chains: list[list[Any]], step: Any
    ) -> None:
        """Advance every chain of the tile by the values of one word per output."""
        rows, lanes = len(chains), self.unit.lanes
        weights = []
        for panel in panels:
            address = _at(b, panel, b.mul(step, _i64(lanes)), I32)
            word = b.load(address, align=4 * lanes, typ=self.ints)
            weights.append([b.bitcast(value, self.floats) for value in self.values(b, word)])
            ahead = _at(b, address, _i64(PREFETCH_BYTES // 4), I32)
            # to read, keep in every cache level, data
            b.call(self.prefetch, [ahead, *(ir.Constant(I32, flag) for flag in (0, 3, 1))])
        activations = _at(b, x, b.mul(step, _i64(self.depth * rows)), F32)
        for k in range(self.depth):
            for row in range(rows):
                scalar = b.load(_at(b, activations, _i64(k * rows + row), F32), typ=F32)
                factor = self.splat(b, scalar, self.floats)
                for weight, chain in zip(weights, chains[row], strict=True):
                    total = b.load(chain, typ=self.floats)
                    b.store(b.call(self.fma, [weight[k], factor, total]), chain)

    def emit_pack(self) -> Any:
        """pack(x, packed, rows, steps): widen a block of rows."""
        function, b = self.define("pack", [PTR, PTR, I64, I64])
        x, packed, rows, steps = function.args
        with _loop(b, _i64(0), rows) as row:
            source = _at(b, x, b.mul(row, steps), I32)
            with _loop(b, _i64(0), steps) as step:
                word = b.load(_at(b, source, step, I32), align=2, typ=I32)
                for k, value in enumerate(self.values(b, word)):
                    index = b.add(b.mul(step, _i64(self.depth)), _i64(k))
                    b.store(value, _at(b, packed, b.add(b.mul(index, rows), row), I32), align=4)
        b.ret_void()
        return function

    def emit_share(self) -> Any:
        """share(job): what one thread of the team, or the only one, does of a job.

        It has strips of its own, and takes all blocks of rows through a strip while its weights
        are in the cache.
        """
        tiles = self.emit_tiles()
        number = self.declare("omp_get_thread_num", I32, [])
        size = self.declare("omp_get_num_threads", I32, [])
        function, b = self.define("share", [PTR])
        (job,) = function.args
        thread, threads = (b.zext(b.call(query, []), I64) for query in (number, size))
        call, packed, first, rows = self.fields(b, job, JOB_FIELDS)
        _, weights, bias, out, _, steps, outputs, _ = self.fields(b, call, CALL_FIELDS)
        strips = _ceil(b, outputs, _i64(self.unit.strip))
        start, stop = (
            b.sdiv(b.mul(strips, end), threads) for end in (thread, b.add(thread, _i64(1)))
        )
        with _loop(b, start, stop) as strip:
            column = b.mul(strip, _i64(self.unit.strip))
            panels, biases = _at(b, weights, b.mul(column, steps), I32), _at(b, bias, column, F32)
            valid = b.sub(outputs, column)
            with self.each_block(b, packed, rows, steps) as (row, height, activations):
                target = b.add(b.mul(b.add(first, row), outputs), column)
                target = _at(b, out, target, self.scalar)
                arguments = [activations, panels, biases, target, steps, outputs, valid]
                self.call_one_of(b, tiles, height, arguments)
        b.ret_void()
        return function

    @contextmanager
    def each_block(
        self, b: Any, packed: Any, rows: Any, steps: Any
    ) -> Iterator[tuple[Any, Any, Any]]:
        """Loop over a job's blocks of rows: first row, number of rows, widened activations."""
        height = _ceil(b, rows, _ceil(b, rows, _i64(self.unit.max_rows)))
        with _loop(b, _i64(0), rows, height) as row:
            activations = _at(b, packed, b.mul(row, b.mul(steps, _i64(self.depth))), F32)
            yield row, _minimum(b, height, b.sub(rows, row)), activations

    def emit_tiles(self) -> dict[int, Any]:
        store = self.emit_store()
        return {rows: self.emit_tile(rows, store) for rows in range(1, self.unit.max_rows + 1)}

    def call_one_of(
        self, b: Any, functions: dict[int, Any], key: Any, arguments: list[Any]
    ) -> None:
        done = b.append_basic_block("done")
        choice = b.switch(key, done)
        for value, function in functions.items():
            choice.add_case(_i64(value), case := b.append_basic_block(f"case{value}"))
            b.position_at_end(case)
            b.call(function, arguments)
            b.branch(done)
        b.position_at_end(done)

    def fields(self, b: Any, record: Any, names: tuple[str, ...]) -> list[Any]:
        """Load a record of 64-bit fields."""
        return [
            b.load(_at(b, record, _i64(i), I64), typ=PTR if name in POINTERS else I64)
            for i, name in enumerate(names)
        ]

    def emit_linear(self) -> str:
        """linear(call), the entry: all rows, job by job; returns the text of the module."""
        pack, share = self.emit_pack(), self.emit_share()
        parallel = self.declare("GOMP_parallel", VOID, [PTR, PTR, I32, I32])
        malloc, free = self.declare("malloc", PTR, [I64]), self.declare("free", VOID, [PTR])
        function, b = self.define("linear", [PTR])
        (call,) = function.args
        x, _, _, _, rows, steps, outputs, threads = self.fields(b, call, CALL_FIELDS)
        depth = b.mul(steps, _i64(self.depth))
        limit = b.sdiv(_i64(PACKED_ROWS_BYTES // 4), depth)
        limit = _minimum(b, rows, _maximum(b, limit, _i64(self.unit.max_rows)))
        work = b.mul(b.mul(b.add(limit, _i64(WEIGHT_WORK)), depth), outputs)
        threads = _minimum(b, threads, b.sdiv(work, _i64(MIN_WORK_PER_THREAD)))
        packed = b.call(malloc, [b.mul(b.mul(limit, depth), _i64(4))])
        job = b.alloca(I64, len(JOB_FIELDS))
        with _loop(b, _i64(0), rows, limit) as first:
            height = _minimum(b, limit, b.sub(rows, first))
            record = b.ptrtoint(call, I64), b.ptrtoint(packed, I64), first, height
            for i, value in enumerate(record):
                b.store(value, _at(b, job, _i64(i), I64))
            with self.each_block(b, packed, height, steps) as (row, block, activations):
                source = _at(b, x, b.mul(b.add(first, row), steps), I32)
                b.call(pack, [source, activations, block, steps])
            with b.if_else(b.icmp_signed(">", threads, _i64(1))) as (in_team, alone):
                with in_team:
                    members = b.trunc(threads, I32)
                    b.call(parallel, [share, job, members, ir.Constant(I32, 0)])
                with alone:
                    b.call(share, [job])
        b.call(free, [packed])
        b.ret_void()
        return str(self.module)


@functools.cache
def bind_openmp() -> bool:
    """Let compiled code call the OpenMP runtime torch is linked with; False if there is none."""
    try:
        torch_library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        for name in OPENMP_FUNCTIONS:
            # A symbol lookup through a library also searches the libraries it was linked with.
            llvm.add_symbol(name, ctypes.cast(torch_library[name], ctypes.c_void_p).value)
    except (OSError, AttributeError):
        return False
    return True


@functools.cache
def compiled(unit: VectorUnit, dtype: torch.dtype) -> Callable[[bytes], None]:
    """The kernel: a function of one packed `CALL`, which releases the GIL while it runs."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), jit=True
    )
    module = llvm.parse_assembly(_Emitter(unit, dtype).emit_linear())
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    # The loops are written out by hand; the optimiser has only registers to assign.
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(engine.get_function_address("linear"))
    function.engine = engine  # type: ignore[attr-defined]  # it owns the code
    return function
