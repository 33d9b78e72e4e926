"""The compiled kernel of `cpu_attention`: LLVM IR, written with llvmlite.

Importing this module requires llvmlite; `cpu_attention` is the way in.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from draftloop.runtime.llvm import (
    F32,
    I64,
    PTR,
    VOID,
    Emitter,
    VectorUnit,
    at,
    compile_module,
    i64,
    lanes_for,
    loop,
    minimum,
)
from draftloop.runtime.team import Team

MIN_WORK_PER_THREAD = 1 << 18  # multiply-adds of vectors; for less, waking a thread costs more
MOST_CHUNKS = 8  # vectors of one row that are summed at a time

CALL_FIELDS = (
    "query", "keys", "values", "bias", "out", "rows", "stored", "stride", "heads", "group",
    "query_head", "query_row", "key_head", "scale", "threads",
)  # fmt: skip
CALL = struct.Struct("13qd1q")
POINTERS = ("query", "keys", "values", "bias", "out")


class _AttentionEmitter(Emitter):
    """Writes the module for heads of `dim` dimensions, which are constant so that rows of keys,
    queries and values are vectors in registers.

    Scores and weights: [rows][stride], `stride` a multiple of the lanes that covers `stored`.
    """

    entry, part = "attention", "attention_part"

    def __init__(self, unit: VectorUnit, dim: int) -> None:
        super().__init__(VectorUnit(lanes=lanes_for(unit, dim), registers=unit.registers))
        self.team = Team(self)
        self.dim = dim
        self.chunks = dim // self.unit.lanes

    def row(self, b: Any, base: Any, index: Any, width: Any = None) -> Any:
        """Address of row number `index` of a matrix of `dim`, or `width`, floats a row."""
        return at(b, base, b.mul(index, i64(self.dim) if width is None else width), F32)

    def chunk(self, b: Any, row: Any, number: int) -> Any:
        """Vector number `number` of a row."""
        address = at(b, row, i64(number * self.unit.lanes), F32)
        return b.load(address, align=4, typ=self.floats)

    def emit_scores(self) -> Any:
        """scores(query, keys, scores, rows, row_stride, stored, stride, scale): scaled products."""
        function, b = self.define("scores", [PTR, PTR, PTR, I64, I64, I64, I64, F32])
        query, keys, scores, rows, query_row, stored, stride, scale = function.args
        with loop(b, i64(0), stored) as j:
            key = self.row(b, keys, j)
            chunks = [self.chunk(b, key, c) for c in range(self.chunks)]
            with loop(b, i64(0), rows) as row:
                source = self.row(b, query, row, query_row)
                total = self.constant(0.0)
                for c, chunk in enumerate(chunks):
                    total = b.call(self.fma, [self.chunk(b, source, c), chunk, total])
                score = b.fmul(self.sum_of_lanes(b, total), scale)
                b.store(score, at(b, scores, b.add(b.mul(row, stride), j), F32))
        b.ret_void()
        return function

    def emit_weights(self) -> Any:
        """weights(scores, bias, stored, stride): exp(score + bias - their most), one row in place.

        Hidden keys, whose bias is -inf, and the row's end beyond `stored` weigh 0.
        """
        function, b = self.define("weights", [PTR, PTR, I64, I64])
        scores, bias, stored, stride = function.args
        with b.goto_entry_block():
            most = b.alloca(self.floats)
        with loop(b, stored, stride) as j:  # never written otherwise
            b.store(ir.Constant(F32, 0.0), at(b, scores, j, F32))
        b.store(self.constant(-math.inf), most)
        with loop(b, i64(0), stride, i64(self.unit.lanes)) as j:
            address = at(b, scores, j, F32)
            hidden = b.load(at(b, bias, j, F32), align=4, typ=self.floats)
            score = b.fadd(b.load(address, align=4, typ=self.floats), hidden)
            b.store(score, address, align=4)
            known = b.load(most, typ=self.floats)
            b.store(b.select(b.fcmp_ordered(">", score, known), score, known), most)
        highest = self.most_of_lanes(b, b.load(most, typ=self.floats))
        with loop(b, i64(0), stride, i64(self.unit.lanes)) as j:
            address = at(b, scores, j, F32)
            score = b.load(address, align=4, typ=self.floats)
            weight = self.exponential(b, b.fsub(score, highest))
            hidden = b.fcmp_ordered("==", score, self.constant(-math.inf))
            b.store(b.select(hidden, self.constant(0.0), weight), address, align=4)
        b.ret_void()
        return function

    @property
    def most_rows(self) -> int:
        """Rows whose sums, weights and sums of weights fit the registers beside one value."""
        return max(1, (self.unit.registers - 2) // (min(self.chunks, MOST_CHUNKS) + 2))

    def emit_means(self, rows: int) -> Any:
        """means(weights, values, out, stored, stride, out_row) of so many rows."""
        function, b = self.define(f"means{rows}", [PTR, PTR, PTR, I64, I64, I64])
        weights, values, out, stored, stride, out_row = function.args
        for first in range(0, self.chunks, MOST_CHUNKS):
            numbers = range(first, min(first + MOST_CHUNKS, self.chunks))
            with b.goto_entry_block():
                sums = [[b.alloca(self.floats) for _ in numbers] for _ in range(rows)]
                totals = [b.alloca(self.floats) for _ in range(rows)]
            for chain in [*totals, *(chain for chains in sums for chain in chains)]:
                b.store(self.constant(0.0), chain)
            with loop(b, i64(0), stored) as j:
                self.emit_value(
                    b, weights, self.row(b, values, j), sums, totals, numbers, j, stride
                )
            for row, (chains, total) in enumerate(zip(sums, totals, strict=True)):
                target = self.row(b, out, i64(row), out_row)
                whole = b.load(total, typ=self.floats)
                for number, chain in zip(numbers, chains, strict=True):
                    mean = b.fdiv(b.load(chain, typ=self.floats), whole)
                    b.store(mean, at(b, target, i64(number * self.unit.lanes), F32), align=4)
        b.ret_void()
        return function

    def emit_value(
        self, b: Any, weights: Any, value: Any, sums: list[list[Any]], totals: list[Any],
        numbers: range, j: Any, stride: Any,
    ) -> None:  # fmt: skip
        """Adds one value to the sums of all rows, each by its own weight."""
        factors = []
        for row, total in enumerate(totals):
            place = b.add(b.mul(i64(row), stride), j)
            factor = self.splat(b, b.load(at(b, weights, place, F32), typ=F32), self.floats)
            b.store(b.fadd(b.load(total, typ=self.floats), factor), total)
            factors.append(factor)
        for place, number in enumerate(numbers):
            chunk = self.chunk(b, value, number)
            for chains, factor in zip(sums, factors, strict=True):
                total = b.load(chains[place], typ=self.floats)
                b.store(b.call(self.fma, [chunk, factor, total]), chains[place])

    def emit_head(self) -> Any:
        """head(query, keys, values, bias, out, scores, rows, stored, stride, ...): one head."""
        scores_of, weights_of = self.emit_scores(), self.emit_weights()
        means_of = {rows: self.emit_means(rows) for rows in range(1, self.most_rows + 1)}
        function, b = self.define("head", [PTR] * 6 + [I64] * 5 + [F32])
        query, keys, values, bias, out, scores, rows, stored, stride, *more = function.args
        query_row, out_row, scale = more
        b.call(scores_of, [query, keys, scores, rows, query_row, stored, stride, scale])
        with loop(b, i64(0), rows) as row:
            mine = (self.row(b, matrix, row, stride) for matrix in (scores, bias))
            b.call(weights_of, [*mine, stored, stride])
        with loop(b, i64(0), rows, i64(self.most_rows)) as row:
            arguments = [
                self.row(b, scores, row, stride), values, self.row(b, out, row, out_row),
                stored, stride, out_row,
            ]  # fmt: skip
            height = minimum(b, i64(self.most_rows), b.sub(rows, row))
            self.call_one_of(b, means_of, height, arguments)
        b.ret_void()
        return function

    def emit_part(self) -> Any:
        """attention_part(call): the heads that fall to one thread of a team."""
        head_of = self.emit_head()
        malloc, free = self.declare("malloc", PTR, [I64]), self.declare("free", VOID, [PTR])
        function, b = self.define(self.part, [PTR])
        (call,) = function.args
        known = self.record(b, call, CALL_FIELDS, POINTERS)
        rows, stored, stride = (known[name] for name in ("rows", "stored", "stride"))
        scores = b.call(malloc, [b.mul(b.mul(rows, stride), i64(4))])
        scale = b.fptrunc(b.bitcast(known["scale"], ir.DoubleType()), F32)
        out_row = b.mul(known["heads"], i64(self.dim))
        start, stop = self.team.own_part(b, known["heads"])
        with loop(b, start, stop) as head:
            query = self.row(b, known["query"], head, known["query_head"])
            shared = b.sdiv(head, known["group"])
            keys, values = (
                self.row(b, known[name], shared, known["key_head"]) for name in ("keys", "values")
            )
            out = self.row(b, known["out"], head)
            sizes = [rows, stored, stride, known["query_row"], out_row]
            b.call(head_of, [query, keys, values, known["bias"], out, scores, *sizes, scale])
        b.call(free, [scores])
        b.ret_void()
        return function

    def emit_attention(self) -> str:
        """attention(call), the entry; returns the text of the module."""
        part = self.emit_part()
        function, b = self.define(self.entry, [PTR])
        (call,) = function.args
        known = self.record(b, call, CALL_FIELDS, POINTERS)
        products = b.mul(b.mul(known["heads"], known["rows"]), known["stored"])
        work = b.mul(products, i64(4 * self.chunks))
        threads = minimum(b, known["threads"], b.sdiv(work, i64(MIN_WORK_PER_THREAD)))
        self.team.run(b, part, call, minimum(b, threads, known["heads"]))
        b.ret_void()
        return str(self.module)


@functools.cache
def compiled(unit: VectorUnit, dim: int) -> Callable[[bytes], None]:
    """The kernel for heads of `dim` dimensions: a function of one packed `CALL`."""
    return compile_module(_AttentionEmitter(unit, dim).emit_attention(), _AttentionEmitter.entry)
