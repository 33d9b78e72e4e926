"""Multiply-adds of vectors for the kernel of `cpu_linear`: LLVM IR, built with llvmlite.

Weights are read once for a block of rows, whose sums the registers hold. Importing this module
requires llvmlite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir

from draftloop.runtime.cpu_linear_way import Block
from draftloop.runtime.huge_pages import LINE_BYTES
from draftloop.runtime.llvm import (
    F32,
    I32,
    I64,
    PTR,
    VOID,
    FormatEmitter,
    at,
    ceil,
    i64,
    loop,
    minimum,
)
from draftloop.runtime.vector_unit import STRIP_VECTORS

BLOCK = 512  # values along k that a tile processes at a time; those of its rows fit the L1 cache
# Floats between two rows of a block: not a power of two, or all rows fall into the same cache sets.
ROW_FLOATS = BLOCK + 16
SPAN_FLOATS = 2  # per span, after a row's block: integers store the scale there
NEAR_BYTES = 512  # distance of the prefetch from L2 into L1, ahead of each weight stream
Chains = list[list[Any]]  # of a tile: by row, then by vector
EmitStep = Callable[[Chains, Any, bool], None]  # of chains: at a step, whether it prefetches
FROM_L2, FROM_L1 = 2, 3  # LLVM's codes for the levels


class Lines:
    """Emits, into the module of the linear kernel, multiplication by vectors.

    Activations are converted to float32 block by block, [rows][ROW_FLOATS].
    """

    name = "lines"
    products = 0  # registers that a product takes before it is added

    def __init__(self, emitter: FormatEmitter) -> None:
        self._emitter = emitter
        self._prefetch = emitter.declare("llvm.prefetch.p0", VOID, [PTR, I32, I32, I32])
        self._pack = self._emit_pack()
        self._tiles = {rows: self._emit_tile(rows) for rows in range(1, self.max_rows + 1)}

    @property
    def parts(self) -> int:
        """Parts of a word that are multiplied one after the other: its values."""
        return self._emitter.depth

    @property
    def block(self) -> int:
        """Steps whose parts take BLOCK words of a row."""
        return BLOCK // self.parts

    @property
    def span(self) -> int:
        """Steps per chain of sums: a whole block, unless the scales change within it."""
        return self.block

    @property
    def step_words(self) -> int:
        """Words of activations per step: one."""
        return 1

    @property
    def chain(self) -> Any:
        """The type of a vector of partial sums."""
        return self._emitter.floats

    @property
    def scalar(self) -> Any:
        """The unit that is packed as one float: a whole word, or a value converted to float32."""
        return F32 if self.parts == 1 else self._emitter.scalar

    @property
    def max_rows(self) -> int:
        """Rows of the largest tile."""
        return self.wide_rows

    @property
    def wide_rows(self) -> int:
        """Rows of the largest tile two vectors wide, with some registers left to the compiler."""
        if self._emitter.unit.registers == 32:
            return 12
        return 6 if self.parts == 1 else 5

    def scales(self, b: Any, strip: Any, step: Any, steps: Any) -> Any:
        """One for every output."""
        return strip

    def begin(self, b: Any) -> Any:
        """Nothing to set up."""

    def end(self, b: Any, before: Any) -> None:
        """Nothing to restore."""

    def room(self, b: Any, rows: Any) -> Any:
        """Rows of sums needed for this many rows."""
        return rows

    def height(self, b: Any, rows: Any) -> Any:
        """All rows if they fit one tile, else even parts that allow tiles two vectors wide."""
        even = ceil(b, rows, ceil(b, rows, i64(self.wide_rows)))
        return b.select(b.icmp_signed("<=", rows, i64(self.max_rows)), rows, even)

    def pack(self, b: Any, x: Any, packed: Any, rows: Any, pitch: Any, steps: Any) -> None:
        """Converts `steps` steps of rows, which are `pitch` steps apart, to float32."""
        depth, values = (b.mul(count, i64(self.parts)) for count in (pitch, steps))
        b.call(self._pack, [x, packed, rows, depth, values])

    def multiply(self, b: Any, packed: Any, block: Block) -> None:
        """Adds the block's part of k to its sums; the first rows prefetch what follows."""
        x = at(b, packed, b.mul(block.row, i64(ROW_FLOATS)), F32)
        is_first = b.icmp_signed("==", block.row, i64(0))
        ahead = b.select(is_first, block.following, i64(0))
        arguments = [
            x, block.weights, block.panel, block.start, block.pitch, block.sums, block.scales,
            block.steps, ahead,
        ]  # fmt: skip
        self._emitter.call_one_of(b, self._tiles, block.rows, arguments)

    def _emit_tile(self, rows: int) -> Any:
        """tile(x, weights, panel, start, pitch, sums, scales, steps, ahead): a strip by `rows`.

        Arguments as in `Block`; prefetches weights `ahead` words further.
        """
        types = [PTR, PTR, I64, PTR, I64, PTR, PTR, I64, I64]
        function, b = self._emitter.define(f"{self.name}_tile{rows}", types)
        x, weights, panel, start, pitch, sums, scales, steps, ahead = function.args
        lanes = self._emitter.unit.lanes
        tile = self._emitter.unit.tile(rows, self.parts, self.products)
        vectors = tile.vectors
        emit_step = self._emit_step if tile.keeps_weights else self._emit_step_by_rows
        with b.goto_entry_block():
            chains = [[b.alloca(self.chain) for _ in range(vectors)] for _ in range(rows)]
        strip = i64(self._emitter.unit.strip)
        with loop(b, i64(0), i64(STRIP_VECTORS), i64(vectors)) as first:
            panels = [
                at(b, weights, b.mul(b.add(first, i64(v)), panel), I32) for v in range(vectors)
            ]
            column = b.mul(first, i64(lanes))
            places = [
                (row, v, b.add(column, i64(v * lanes)))
                for row in range(rows)
                for v in range(vectors)
            ]
            for number, before, begun in self._spans(b, (start, pitch), (sums, strip), steps):
                origin, apart = before
                starts = {
                    place: at(b, origin, b.add(b.mul(i64(row), apart), place), F32)
                    for row, _, place in places
                }
                of_rows = [
                    at(b, x, b.add(i64(row * ROW_FLOATS), b.mul(number, i64(SPAN_FLOATS))), F32)
                    for row in range(rows)
                ]
                for row, v, place in places:
                    b.store(self._begun(b, starts[place], of_rows[row]), chains[row][v])
                stop = minimum(b, b.add(begun, i64(self.span)), steps)
                advance = functools.partial(emit_step, b, x, panels, ahead)
                self._emit_steps(b, advance, chains, begun, stop)
                of_outputs = at(b, scales, b.mul(number, strip), F32)
                for row, v, place in places:
                    target = at(b, sums, b.add(b.mul(i64(row), strip), place), F32)
                    total = b.load(chains[row][v], typ=self.chain)
                    output_scales = at(b, of_outputs, place, F32)
                    ended = self._ended(b, total, starts[place], of_rows[row], output_scales)
                    b.store(ended, target, align=4)
        b.ret_void()
        return function

    def _emit_steps(
        self, b: Any, emit_step: EmitStep, chains: Chains, begun: Any, stop: Any
    ) -> None:
        """Advances the chains by the steps from `begun` to `stop`.

        Steps whose weights share a line of the cache follow each other, and the first prefetches.
        """
        in_line = LINE_BYTES // (4 * self._emitter.unit.lanes)
        whole = b.sub(stop, b.srem(b.sub(stop, begun), i64(in_line)))
        with loop(b, begun, whole, i64(in_line)) as first:
            for n in range(in_line):
                emit_step(chains, b.add(first, i64(n)), n == 0)
        with loop(b, whole, stop) as step:
            emit_step(chains, step, True)

    def _spans(
        self, b: Any, start: tuple[Any, Any], sums: tuple[Any, Any], steps: Any
    ) -> Iterator[tuple[Any, tuple[Any, Any], Any]]:
        """Emits its body once for every span of steps; usually there is only one.

        Yields the span's index, the sums it continues from with their pitch, and its first step.
        """
        if self.span == self.block:
            yield i64(0), start, i64(0)
            return
        with loop(b, i64(0), steps, i64(self.span)) as begun:
            is_first = b.icmp_signed("==", begun, i64(0))
            origin, apart = (b.select(is_first, *both) for both in zip(start, sums, strict=True))
            yield b.sdiv(begun, i64(self.span)), (origin, apart), begun

    def _begun(self, b: Any, start: Any, row: Any) -> Any:
        """The initial value of a packed row's chain, whose sums continue from `start`."""
        return b.load(start, align=4, typ=self._emitter.floats)

    def _ended(self, b: Any, total: Any, start: Any, row: Any, scales: Any) -> Any:
        """The final sums of a packed row's chain, for outputs with these scales."""
        return total

    def _emit_step(
        self, b: Any, x: Any, panels: list[Any], ahead: Any, chains: Chains, step: Any,
        fetches: bool,
    ) -> None:  # fmt: skip
        """Advance every chain of the tile by the values of one word per output."""
        lanes = self._emitter.unit.lanes
        weights = []
        for panel in panels:
            address = at(b, panel, b.mul(step, i64(lanes)), I32)
            word = b.load(address, align=4 * lanes, typ=self._emitter.ints)
            weights.append(self._values(b, word))
            if fetches:
                self._fetch_next(b, address, ahead)
        activations = at(b, x, b.mul(step, i64(self.parts)), F32)
        for k in range(self.parts):
            for row, row_chains in enumerate(chains):
                factor = self._factor(b, activations, row, k)
                for weight, chain in zip(weights, row_chains, strict=True):
                    total = b.load(chain, typ=self.chain)
                    b.store(self._advanced(b, total, weight[k], factor), chain)

    def _emit_step_by_rows(
        self, b: Any, x: Any, panels: list[Any], ahead: Any, chains: Chains, step: Any,
        fetches: bool,
    ) -> None:  # fmt: skip
        """`_emit_step` with the rows' activations in registers; weights are used vector by vector.

        The weights of a word are loaded again for each of its values. If they were kept or loaded
        early, they would take registers of sums; hence the fences, which loads do not cross.
        """
        lanes = self._emitter.unit.lanes
        addresses = [at(b, panel, b.mul(step, i64(lanes)), I32) for panel in panels]
        for address in addresses if fetches else ():
            self._fetch_next(b, address, ahead)
        activations = at(b, x, b.mul(step, i64(self.parts)), F32)
        for k in range(self.parts):
            factors = [self._factor(b, activations, row, k) for row in range(len(chains))]
            for v, address in enumerate(addresses):
                b.asm(ir.FunctionType(VOID, []), "", "~{memory}", [], side_effect=True)
                word = b.load(address, align=4 * lanes, typ=self._emitter.ints)
                weight = self._values(b, word)[k]
                for row_chains, factor in zip(chains, factors, strict=True):
                    total = b.load(row_chains[v], typ=self.chain)
                    b.store(self._advanced(b, total, weight, factor), row_chains[v])

    def _values(self, b: Any, word: Any) -> list[Any]:
        """The float32 values in each word of a vector, in order of k."""
        if self.parts == 1:
            return [b.bitcast(word, self._emitter.floats)]
        high = self._emitter.whole(0xFFFF0000)
        values = b.shl(word, self._emitter.whole(16)), b.and_(word, high)
        return [b.bitcast(value, self._emitter.floats) for value in values]

    def _factor(self, b: Any, activations: Any, row: int, part: int) -> Any:
        """A row's value at a part of a word, in every lane."""
        scalar = b.load(at(b, activations, i64(row * ROW_FLOATS + part), F32), typ=F32)
        return self._emitter.splat(b, scalar, self._emitter.floats)

    def _word(self, b: Any, activations: Any, row: int, part: int) -> Any:
        """A row's word at a part of a step, in every lane: what is multiplied whole."""
        word = b.load(at(b, activations, i64(row * ROW_FLOATS + part), F32), align=4, typ=I32)
        return self._emitter.splat(b, word, self._emitter.ints)

    def _advanced(self, b: Any, total: Any, weight: Any, factor: Any) -> Any:
        """The sums with one product added."""
        return b.call(self._emitter.fma, [weight, factor, total])

    def _fetch_next(self, b: Any, address: Any, ahead: Any) -> None:
        """Prefetches what a weight stream reads soon, and what it reads `ahead` words later."""
        self._fetch(b, at(b, address, ahead, I32), FROM_L2)
        self._fetch(b, at(b, address, i64(NEAR_BYTES // 4), I32), FROM_L1)

    def _fetch(self, b: Any, address: Any, level: int) -> None:
        """Prefetches data for reading into a level of the cache and those beyond it."""
        flags = (ir.Constant(I32, flag) for flag in (0, level, 1))
        b.call(self._prefetch, [address, *flags])

    def _emit_pack(self) -> Any:
        """pack(x, packed, rows, depth, values): widens `values` values per row of `depth`."""
        function, b = self._emitter.define(f"{self.name}_pack", [PTR, PTR, I64, I64, I64])
        x, packed, rows, depth, values = function.args
        lanes = i64(self._emitter.unit.lanes)
        whole = b.mul(b.sdiv(values, lanes), lanes)
        with loop(b, i64(0), rows) as row:
            source = at(b, x, b.mul(row, depth), self.scalar)
            target = at(b, packed, b.mul(row, i64(ROW_FLOATS)), F32)
            with loop(b, i64(0), whole, lanes) as k:
                b.store(self._load(b, source, k), at(b, target, k, F32), align=4)
                # the next block, or the weights push it out of the cache meanwhile
                self._fetch(b, at(b, source, b.add(k, i64(BLOCK)), self.scalar), FROM_L2)
            with loop(b, whole, values) as k:
                b.store(self._load_one(b, source, k), at(b, target, k, F32), align=4)
        b.ret_void()
        return function

    def _load(self, b: Any, base: Any, index: Any) -> Any:
        """The vector of packed floats at index `index`."""
        if self.parts == 1:
            return b.load(at(b, base, index, F32), align=4, typ=self._emitter.floats)
        return self._emitter.load(b, base, index)

    def _load_one(self, b: Any, base: Any, index: Any) -> Any:
        """The packed float at index `index`."""
        address = at(b, base, index, self.scalar)
        if self.parts == 1:
            return b.load(address, align=4, typ=F32)
        word = b.zext(b.load(address, align=2, typ=self._emitter.scalar), I32)
        return b.bitcast(b.shl(word, ir.Constant(I32, 16)), F32)
