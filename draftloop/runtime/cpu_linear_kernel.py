"""The compiled kernel of `cpu_linear`: LLVM IR, written with llvmlite and compiled in the process.

One function per weight format and vector unit, `linear(call)`, multiplies a block of rows by a
packed matrix. Importing this module requires llvmlite; `cpu_linear` is the way in.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from llvmlite import ir

from draftloop.runtime.llvm import (
    F32,
    I1,
    I32,
    I64,
    PTR,
    STRIP_VECTORS,
    VOID,
    FormatEmitter,
    VectorUnit,
    at,
    ceil,
    compile_module,
    i64,
    loop,
    maximum,
    minimum,
)

PREFETCH_BYTES = 1024  # ahead of each weight stream; the hardware's own stops at a page's end

PACKED_ROWS_BYTES = 512 * 1024  # widened activations at any time: they should stay in the L2 cache
MIN_WORK_PER_THREAD = 1 << 21  # multiply-adds; for less, waking a thread costs more than it saves
WEIGHT_WORK = 4  # multiply-adds that take as long as fetching a weight

CALL = struct.Struct("8q")
CALL_FIELDS = ("x", "weights", "bias", "out", "rows", "steps", "outputs", "threads")
JOB_FIELDS = ("call", "packed", "first", "rows")  # a call's rows [first, first + rows)
POINTERS = ("x", "weights", "bias", "out", "call", "packed")


class _LinearEmitter(FormatEmitter):
    """Writes the LLVM module of one weight format for one vector unit.

    A *word* is 32 bits: one float32, or two bfloat16 that follow one another along k. A *step* is
    the part of k that one word spans. Weights lie in panels of `lanes` outputs, [steps][lanes]
    words each; activations are widened to float32 and lie in blocks of rows, [k][rows].
    """

    entry = "linear"

    def __init__(self, unit: VectorUnit, dtype: torch.dtype) -> None:
        super().__init__(unit, dtype)
        self.depth = 4 // dtype.itemsize  # values in a word
        scalars = ir.VectorType(self.scalar, unit.lanes)
        self.masked_store = self.declare(
            f"llvm.masked.store.v{unit.lanes}{'i16' if self.depth == 2 else 'f32'}.p0",
            VOID,
            [scalars, PTR, I32, ir.VectorType(I1, unit.lanes)],
        )
        self.prefetch = self.declare("llvm.prefetch.p0", VOID, [PTR, I32, I32, I32])

    def values(self, b: Any, word: Any) -> list[Any]:
        """The bits of the float32 values in a word (or in each word of a vector), in order of k."""
        if self.depth == 1:
            return [word]
        lanes = self.unit.lanes if word.type == self.ints else 0
        shift, high = (
            ir.Constant(word.type, [n] * lanes if lanes else n) for n in (16, 0xFFFF0000)
        )
        return [b.shl(word, shift), b.and_(word, high)]

    def emit_store(self) -> Any:
        """store(sums, out, outputs, valid, rows, vectors): round [rows][vectors] into `out`.

        Rows of `out` are `outputs` apart; only the first `valid` columns exist.
        """
        function, b = self.define("store", [PTR, PTR, I64, I64, I64, I64])
        sums, out, outputs, valid, rows, vectors = function.args
        lane = ir.Constant(self.ints, list(range(self.unit.lanes)))
        with loop(b, i64(0), vectors) as vector:
            column = b.mul(vector, i64(self.unit.lanes))
            left = self.splat(b, b.trunc(b.sub(valid, column), I32), self.ints)
            mask = b.icmp_signed("<", lane, left)
            with loop(b, i64(0), rows) as row:
                index = b.add(b.mul(row, vectors), vector)
                value = b.load(at(b, sums, index, self.floats), typ=self.floats)
                target = at(b, out, b.add(b.mul(row, outputs), column), self.scalar)
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
        with loop(b, i64(0), i64(STRIP_VECTORS), i64(vectors)) as first:
            column = b.mul(first, i64(lanes))
            panels = [
                at(b, weights, b.mul(b.add(column, i64(v * lanes)), steps), I32)
                for v in range(vectors)
            ]
            for v in range(vectors):
                address = at(b, bias, b.add(column, i64(v * lanes)), F32)
                start = b.load(address, align=4, typ=self.floats)
                for row in range(rows):
                    b.store(start, chains[row][v])
            with loop(b, i64(0), steps) as step:
                self.emit_step(b, x, panels, chains, step)
            for row in range(rows):
                for v in range(vectors):
                    value = b.load(chains[row][v], typ=self.floats)
                    b.store(value, at(b, sums, i64(row * vectors + v), self.floats))
            target, left = at(b, out, column, self.scalar), b.sub(valid, column)
            b.call(store, [sums, target, outputs, left, i64(rows), i64(vectors)])
        b.ret_void()
        return function

    def emit_step(
        self, b: Any, x: Any, panels: list[Any], chains: list[list[Any]], step: Any
    ) -> None:
        """Advance every chain of the tile by the values of one word per output."""
        rows, lanes = len(chains), self.unit.lanes
        weights = []
        for panel in panels:
            address = at(b, panel, b.mul(step, i64(lanes)), I32)
            word = b.load(address, align=4 * lanes, typ=self.ints)
            weights.append([b.bitcast(value, self.floats) for value in self.values(b, word)])
            ahead = at(b, address, i64(PREFETCH_BYTES // 4), I32)
            # to read, keep in every cache level, data
            b.call(self.prefetch, [ahead, *(ir.Constant(I32, flag) for flag in (0, 3, 1))])
        activations = at(b, x, b.mul(step, i64(self.depth * rows)), F32)
        for k in range(self.depth):
            for row in range(rows):
                scalar = b.load(at(b, activations, i64(k * rows + row), F32), typ=F32)
                factor = self.splat(b, scalar, self.floats)
                for weight, chain in zip(weights, chains[row], strict=True):
                    total = b.load(chain, typ=self.floats)
                    b.store(b.call(self.fma, [weight[k], factor, total]), chain)

    def emit_pack(self) -> Any:
        """pack(x, packed, rows, steps): widen a block of rows."""
        function, b = self.define("pack", [PTR, PTR, I64, I64])
        x, packed, rows, steps = function.args
        with loop(b, i64(0), rows) as row:
            source = at(b, x, b.mul(row, steps), I32)
            with loop(b, i64(0), steps) as step:
                word = b.load(at(b, source, step, I32), align=2, typ=I32)
                for k, value in enumerate(self.values(b, word)):
                    index = b.add(b.mul(step, i64(self.depth)), i64(k))
                    b.store(value, at(b, packed, b.add(b.mul(index, rows), row), I32), align=4)
        b.ret_void()
        return function

    def emit_share(self) -> Any:
        """share(job): what one thread of the team, or the only one, does of a job.

        It has strips of its own, and takes all blocks of rows through a strip while its weights
        are in the cache.
        """
        tiles = self.emit_tiles()
        function, b = self.define("share", [PTR])
        (job,) = function.args
        call, packed, first, rows = self.fields(b, job, JOB_FIELDS, POINTERS)
        _, weights, bias, out, _, steps, outputs, _ = self.fields(b, call, CALL_FIELDS, POINTERS)
        strips = ceil(b, outputs, i64(self.unit.strip))
        start, stop = self.own_part(b, strips)
        with loop(b, start, stop) as strip:
            column = b.mul(strip, i64(self.unit.strip))
            panels, biases = at(b, weights, b.mul(column, steps), I32), at(b, bias, column, F32)
            valid = b.sub(outputs, column)
            with self.each_block(b, packed, rows, steps) as (row, height, activations):
                target = b.add(b.mul(b.add(first, row), outputs), column)
                target = at(b, out, target, self.scalar)
                arguments = [activations, panels, biases, target, steps, outputs, valid]
                self.call_one_of(b, tiles, height, arguments)
        b.ret_void()
        return function

    @contextmanager
    def each_block(
        self, b: Any, packed: Any, rows: Any, steps: Any
    ) -> Iterator[tuple[Any, Any, Any]]:
        """Loop over a job's blocks of rows: first row, number of rows, widened activations."""
        height = ceil(b, rows, ceil(b, rows, i64(self.unit.max_rows)))
        with loop(b, i64(0), rows, height) as row:
            activations = at(b, packed, b.mul(row, b.mul(steps, i64(self.depth))), F32)
            yield row, minimum(b, height, b.sub(rows, row)), activations

    def emit_tiles(self) -> dict[int, Any]:
        store = self.emit_store()
        return {rows: self.emit_tile(rows, store) for rows in range(1, self.unit.max_rows + 1)}

    def emit_linear(self) -> str:
        """linear(call), the entry: all rows, job by job; returns the text of the module."""
        pack, share = self.emit_pack(), self.emit_share()
        malloc, free = self.declare("malloc", PTR, [I64]), self.declare("free", VOID, [PTR])
        function, b = self.define("linear", [PTR])
        (call,) = function.args
        x, _, _, _, rows, steps, outputs, threads = self.fields(b, call, CALL_FIELDS, POINTERS)
        depth = b.mul(steps, i64(self.depth))
        limit = b.sdiv(i64(PACKED_ROWS_BYTES // 4), depth)
        limit = minimum(b, rows, maximum(b, limit, i64(self.unit.max_rows)))
        work = b.mul(b.mul(b.add(limit, i64(WEIGHT_WORK)), depth), outputs)
        threads = minimum(b, threads, b.sdiv(work, i64(MIN_WORK_PER_THREAD)))
        packed = b.call(malloc, [b.mul(b.mul(limit, depth), i64(4))])
        job = b.alloca(I64, len(JOB_FIELDS))
        with loop(b, i64(0), rows, limit) as first:
            height = minimum(b, limit, b.sub(rows, first))
            record = b.ptrtoint(call, I64), b.ptrtoint(packed, I64), first, height
            for i, value in enumerate(record):
                b.store(value, at(b, job, i64(i), I64))
            with self.each_block(b, packed, height, steps) as (row, block, activations):
                source = at(b, x, b.mul(b.add(first, row), steps), I32)
                b.call(pack, [source, activations, block, steps])
            self.call_in_team(b, share, job, threads)
        b.call(free, [packed])
        b.ret_void()
        return str(self.module)


@functools.cache
def compiled(unit: VectorUnit, dtype: torch.dtype) -> Callable[[bytes], None]:
    """The kernel: a function of one packed `CALL`."""
    return compile_module(_LinearEmitter(unit, dtype).emit_linear(), _LinearEmitter.entry)
