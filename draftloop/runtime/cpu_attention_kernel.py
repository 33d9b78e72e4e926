"""The compiled kernel of `cpu_attention`: LLVM IR, built with llvmlite.

Importing this module requires llvmlite; used through `cpu_attention`.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from llvmlite import ir

from draftloop.runtime.llvm import (
    F32,
    F64,
    I64,
    PTR,
    VOID,
    FormatEmitter,
    at,
    compile_module,
    i64,
    loop,
    minimum,
)
from draftloop.runtime.team import Team
from draftloop.runtime.vector_unit import VectorUnit, lanes_for

MIN_WORK_PER_THREAD = 1 << 18  # multiply-adds of vectors; for less, waking a thread costs more
MAX_CHUNKS = 8  # vectors of one row that are summed at a time
VALUES_FLOATS = 1 << 12  # values that are used for all rows in turn, from the L1 cache

CALL_FIELDS = (
    "query", "keys", "values", "bias", "out", "rows", "stored", "stride", "heads", "group",
    "query_head", "query_row", "key_head", "scale", "threads",
)  # fmt: skip
# Read only by the variants that need them: the cap of scores, and a sink score for every head.
EXTRA_FIELDS = ("cap", "sinks")
CALL = struct.Struct("13qd1qd1q")
POINTERS = ("query", "keys", "values", "bias", "out", "sinks")


class Variant(NamedTuple):
    """Optional parts of attention besides scores, bias and softmax."""

    capped: bool = False  # scores become cap * tanh(score / cap) (Gemma 2, arXiv 2408.00118)
    sinks: bool = False  # every head gives some weight to no key (gpt-oss, arXiv 2508.10925)


PLAIN = Variant()


class _AttentionEmitter(FormatEmitter):
    """Emits the module for heads of `dim` dimensions.

    `dim` is constant, so that rows of keys, queries and values are vectors in registers. Keys and
    values are of `dtype`, and are converted to float32 block by block for all rows. Scores and
    weights: [rows][stride], where `stride` is a multiple of the lanes that covers `stored`.
    """

    entry, part = "attention", "attention_part"

    def __init__(
        self, unit: VectorUnit, dtype: torch.dtype, dim: int, variant: Variant = PLAIN
    ) -> None:
        super().__init__(VectorUnit(lanes=lanes_for(unit, dim), registers=unit.registers), dtype)
        self.team = Team(self)
        self.variant = variant
        self.dim = dim
        self.chunks = dim // self.unit.lanes

    def row(self, b: Any, base: Any, index: Any, width: Any = None) -> Any:
        """Address of row number `index` of a matrix of `dim`, or `width`, floats a row."""
        return at(b, base, b.mul(index, i64(self.dim) if width is None else width), F32)

    def chunk(self, b: Any, row: Any, number: int) -> Any:
        """Vector number `number` of a row."""
        address = at(b, row, i64(number * self.unit.lanes), F32)
        return b.load(address, align=4, typ=self.floats)

    @property
    def together(self) -> int:
        """Keys or values that are converted to float32 at a time; at least one vector of them."""
        return max(self.unit.lanes, VALUES_FLOATS // self.dim)

    def emit_block(self) -> Any:
        """block(cache, first, count, wide): address of `count` keys or values as float32.

        Float32 is used in place; other formats are converted to `wide`.
        """
        widen = self.emit_copy(widened=True) if self.narrow else None
        function, b = self.define("block", [PTR, I64, I64, PTR], returning=PTR)
        cache, first, count, wide = function.args
        near = at(b, cache, b.mul(first, i64(self.dim)), self.scalar)
        if widen is not None:
            b.call(widen, [near, wide, b.mul(count, i64(self.dim))])
            near = wide
        b.ret(near)
        return function

    def emit_scores(self, block: Any) -> Any:
        """scores(query, keys, scores, wide, rows, row_stride, stored, stride, scale): products.

        Scaled. One vector of keys at a time for all rows; then the remaining keys.
        """
        function, b = self.define("scores", [PTR, PTR, PTR, PTR, I64, I64, I64, I64, F32])
        query, keys, scores, wide, rows, query_row, stored, stride, scale = function.args
        factor = self.splat(b, scale, self.floats)
        lanes = self.unit.lanes
        whole = b.mul(b.sdiv(stored, i64(lanes)), i64(lanes))
        with loop(b, i64(0), whole, i64(lanes)) as j:
            near = b.call(block, [keys, j, i64(lanes), wide])
            with loop(b, i64(0), rows) as row:
                source = self.row(b, query, row, query_row)
                each = [self.row(b, near, i64(n)) for n in range(lanes)]
                sums = b.fmul(self.sums_of_lanes(b, self.products(b, source, each)), factor)
                b.store(sums, at(b, scores, b.add(b.mul(row, stride), j), F32), align=4)
        near = b.call(block, [keys, whole, b.sub(stored, whole), wide])
        with loop(b, whole, stored) as j, loop(b, i64(0), rows) as row:
            key = self.row(b, near, b.sub(j, whole))
            (total,) = self.products(b, self.row(b, query, row, query_row), [key])
            score = b.fmul(self.sum_of_lanes(b, total), scale)
            b.store(score, at(b, scores, b.add(b.mul(row, stride), j), F32))
        b.ret_void()
        return function

    def products(self, b: Any, query: Any, keys: list[Any]) -> list[Any]:
        """Per lane, the sums of a query's products with each key."""
        totals = [self.constant(0.0) for _ in keys]
        for c in range(self.chunks):
            chunk = self.chunk(b, query, c)
            totals = [
                b.call(self.fma, [chunk, self.chunk(b, key, c), total])
                for key, total in zip(keys, totals, strict=True)
            ]
        return totals

    def emit_weights(self) -> Any:
        """weights(scores, bias, total, stored, stride, cap, sink): exp(score + bias - maximum).

        One row, in place. Masked keys, whose bias is -inf, and the row's end beyond `stored` get
        weight 0. The two variants: scores are capped first; the sink is one more score, and the sum
        of weights in `total` begins with its weight.
        """
        function, b = self.define("weights", [PTR, PTR, PTR, I64, I64, F32, F32])
        scores, bias, total, stored, stride, cap, sink = function.args
        with b.goto_entry_block():
            most = b.alloca(self.floats)
        with loop(b, stored, stride) as j:  # never written otherwise
            b.store(ir.Constant(F32, 0.0), at(b, scores, j, F32))
        last = self.splat(b, sink, self.floats) if self.variant.sinks else None
        b.store(self.constant(-math.inf) if last is None else last, most)
        with loop(b, i64(0), stride, i64(self.unit.lanes)) as j:
            address = at(b, scores, j, F32)
            hidden = b.load(at(b, bias, j, F32), align=4, typ=self.floats)
            score = b.load(address, align=4, typ=self.floats)
            if self.variant.capped:
                score = self.capped(b, score, self.splat(b, cap, self.floats))
            score = b.fadd(score, hidden)
            b.store(score, address, align=4)
            known = b.load(most, typ=self.floats)
            b.store(b.select(b.fcmp_ordered(">", score, known), score, known), most)
        highest = self.max_of_lanes(b, b.load(most, typ=self.floats))
        if last is not None:
            b.store(self.exponential(b, b.fsub(last, highest)), total, align=4)
        with loop(b, i64(0), stride, i64(self.unit.lanes)) as j:
            address = at(b, scores, j, F32)
            score = b.load(address, align=4, typ=self.floats)
            weight = self.exponential(b, b.fsub(score, highest))
            hidden = b.fcmp_ordered("==", score, self.constant(-math.inf))
            b.store(b.select(hidden, self.constant(0.0), weight), address, align=4)
        b.ret_void()
        return function

    def capped(self, b: Any, score: Any, cap: Any) -> Any:
        """cap * tanh(score / cap), where tanh |x| = (1 - e^-2|x|) / (1 + e^-2|x|)."""
        sign = self.whole(0x80000000)
        bits = b.bitcast(b.fdiv(score, cap), self.ints)
        negative = b.bitcast(b.or_(bits, sign), self.floats)
        small = self.exponential(b, b.fadd(negative, negative))
        one = self.constant(1.0)
        size = b.fdiv(b.fsub(one, small), b.fadd(one, small))
        signed = b.or_(b.bitcast(size, self.ints), b.and_(bits, sign))
        return b.fmul(b.bitcast(signed, self.floats), cap)

    @property
    def max_rows(self) -> int:
        """Maximum rows whose sums, weights and totals fit the registers together with one value."""
        return max(1, (self.unit.registers - 2) // (min(self.chunks, MAX_CHUNKS) + 2))

    def emit_means(self, rows: int) -> Any:
        """means(weights, values, out, totals, count, stride, out_row), for a fixed number of rows.

        Adds `count` weighted values to the sums in `out`, and their weights to `totals` (a vector
        per row), in the order of the keys.
        """
        function, b = self.define(f"means{rows}", [PTR] * 4 + [I64] * 3)
        weights, values, out, totals, count, stride, out_row = function.args
        lanes = self.unit.lanes
        for first in range(0, self.chunks, MAX_CHUNKS):
            numbers = range(first, min(first + MAX_CHUNKS, self.chunks))
            places = [
                at(b, self.row(b, out, i64(row), out_row), i64(number * lanes), F32)
                for row in range(rows)
                for number in numbers
            ]
            if first == 0:  # once are enough
                places += [at(b, totals, i64(row * lanes), F32) for row in range(rows)]
            with b.goto_entry_block():
                chains = [b.alloca(self.floats) for _ in places]
            for place, chain in zip(places, chains, strict=True):
                b.store(b.load(place, align=4, typ=self.floats), chain)
            sums = [chains[row * len(numbers) : (row + 1) * len(numbers)] for row in range(rows)]
            with loop(b, i64(0), count) as j:
                value = self.row(b, values, j)
                self.emit_value(
                    b, weights, value, sums, chains[rows * len(numbers) :], numbers, j, stride
                )
            for place, chain in zip(places, chains, strict=True):
                b.store(b.load(chain, typ=self.floats), place, align=4)
        b.ret_void()
        return function

    def emit_value(
        self, b: Any, weights: Any, value: Any, sums: list[list[Any]], totals: list[Any],
        numbers: range, j: Any, stride: Any,
    ) -> None:  # fmt: skip
        """Adds one value to the sums of all rows, times each row's weight, and that to `totals`."""
        factors = []
        for row in range(len(sums)):
            place = b.add(b.mul(i64(row), stride), j)
            factor = self.splat(b, b.load(at(b, weights, place, F32), typ=F32), self.floats)
            factors.append(factor)
        for total, factor in zip(totals, factors, strict=False):
            b.store(b.fadd(b.load(total, typ=self.floats), factor), total)
        for place, number in enumerate(numbers):
            chunk = self.chunk(b, value, number)
            for chains, factor in zip(sums, factors, strict=True):
                total = b.load(chains[place], typ=self.floats)
                b.store(b.call(self.fma, [chunk, factor, total]), chains[place])

    def emit_fill(self) -> Any:
        """fill(out, totals, rows, out_row): sets the sums to zero."""
        function, b = self.define("fill", [PTR, PTR, I64, I64])
        out, totals, rows, out_row = function.args
        nothing = self.constant(0.0)
        with loop(b, i64(0), rows) as row:
            b.store(nothing, self.row(b, totals, row, i64(self.unit.lanes)), align=4)
            for number in range(self.chunks):
                place = i64(number * self.unit.lanes)
                b.store(nothing, at(b, self.row(b, out, row, out_row), place, F32), align=4)
        b.ret_void()
        return function

    def emit_divide(self) -> Any:
        """divide(out, totals, rows, out_row): sums to means."""
        function, b = self.define("divide", [PTR, PTR, I64, I64])
        out, totals, rows, out_row = function.args
        with loop(b, i64(0), rows) as row:
            whole = self.chunk(b, self.row(b, totals, row, i64(self.unit.lanes)), 0)
            for number in range(self.chunks):
                target = self.row(b, out, row, out_row)
                mean = b.fdiv(self.chunk(b, target, number), whole)
                b.store(mean, at(b, target, i64(number * self.unit.lanes), F32), align=4)
        b.ret_void()
        return function

    def emit_head(self) -> Any:
        """head(query, keys, values, bias, out, scores, wide, rows, stored, stride, ...): one head.

        Each row's sums are in the order of the keys, whatever other rows there are, and a masked
        key adds nothing. So a node attends to its path as if that were stored alone.
        """
        block = self.emit_block()
        scores_of, weights_of = self.emit_scores(block), self.emit_weights()
        means_of = {rows: self.emit_means(rows) for rows in range(1, self.max_rows + 1)}
        fill, divide = self.emit_fill(), self.emit_divide()
        function, b = self.define("head", [PTR] * 7 + [I64] * 5 + [F32] * 3)
        query, keys, values, bias, out, scores, wide, rows, stored, stride, *more = function.args
        query_row, out_row, scale, cap, sink = more
        b.call(scores_of, [query, keys, scores, wide, rows, query_row, stored, stride, scale])
        totals = self.row(b, scores, rows, stride)
        b.call(fill, [out, totals, rows, out_row])
        with loop(b, i64(0), rows) as row:
            addresses = (self.row(b, matrix, row, stride) for matrix in (scores, bias))
            total = self.row(b, totals, row, i64(self.unit.lanes))
            b.call(weights_of, [*addresses, total, stored, stride, cap, sink])
        with loop(b, i64(0), stored, i64(self.together)) as first:
            count = minimum(b, i64(self.together), b.sub(stored, first))
            near = b.call(block, [values, first, count, wide])
            with loop(b, i64(0), rows, i64(self.max_rows)) as row:
                weights = at(b, self.row(b, scores, row, stride), first, F32)
                arguments = [
                    weights, near, self.row(b, out, row, out_row),
                    self.row(b, totals, row, i64(self.unit.lanes)), count, stride, out_row,
                ]  # fmt: skip
                height = minimum(b, i64(self.max_rows), b.sub(rows, row))
                self.call_one_of(b, means_of, height, arguments)
        b.call(divide, [out, totals, rows, out_row])
        b.ret_void()
        return function

    def emit_part(self) -> Any:
        """attention_part(call): one thread's heads."""
        head_of = self.emit_head()
        malloc, free = self.declare("malloc", PTR, [I64]), self.declare("free", VOID, [PTR])
        function, b = self.define(self.part, [PTR])
        (call,) = function.args
        fields = CALL_FIELDS if self.variant == PLAIN else CALL_FIELDS + EXTRA_FIELDS
        known = self.record(b, call, fields, POINTERS)
        rows, stored, stride = (known[name] for name in ("rows", "stored", "stride"))
        room = b.mul(rows, b.add(stride, i64(self.unit.lanes)))  # scores, then sums of weights
        block = self.together * self.dim if self.narrow else 0
        scores = b.call(malloc, [b.mul(b.add(room, i64(block)), i64(4))])
        wide = at(b, scores, room, F32)
        nothing = ir.Constant(F32, 0.0)
        scale = self.real(b, known["scale"])
        cap = self.real(b, known["cap"]) if self.variant.capped else nothing
        out_row = b.mul(known["heads"], i64(self.dim))
        start, stop = self.team.own_part(b, known["heads"])
        with loop(b, start, stop) as head:
            query = self.row(b, known["query"], head, known["query_head"])
            shared = b.sdiv(head, known["group"])
            place = b.mul(shared, known["key_head"])
            keys, values = (at(b, known[name], place, self.scalar) for name in ("keys", "values"))
            out = self.row(b, known["out"], head)
            sink = nothing
            if self.variant.sinks:
                sink = b.load(at(b, known["sinks"], head, F32), typ=F32)
            places = [query, keys, values, known["bias"], out, scores, wide]
            sizes = [rows, stored, stride, known["query_row"], out_row]
            b.call(head_of, [*places, *sizes, scale, cap, sink])
        b.call(free, [scores])
        b.ret_void()
        return function

    def real(self, b: Any, field: Any) -> Any:
        """A float64 field of a record as float32."""
        return b.fptrunc(b.bitcast(field, F64), F32)

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
def compiled(
    unit: VectorUnit, dtype: torch.dtype, dim: int, variant: Variant = PLAIN
) -> Callable[[bytes], None]:
    """The kernel for a cache of `dtype` with heads of `dim` dimensions, of one packed `CALL`."""
    text = _AttentionEmitter(unit, dtype, dim, variant).emit_attention()
    return compile_module(text, _AttentionEmitter.entry)
