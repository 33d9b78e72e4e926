"""Multiply-adds of vectors for the kernel of `cpu_linear`: LLVM IR, written with llvmlite.

Weights are read once for a block of rows, whose sums the registers hold. Importing this module
requires llvmlite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from draftloop.runtime.llvm import (
    F32,
    I32,
    I64,
    PTR,
    STRIP_VECTORS,
    VOID,
    FormatEmitter,
    at,
    ceil,
    i64,
    loop,
    minimum,
)

BLOCK = 512  # values along k that a tile takes at a time: those of its rows stay in the L1 cache
# Floats between two rows of a block: not a power of two, or all rows fall into the same cache sets.
ROW_FLOATS = BLOCK + 16
NEAR_BYTES = 512  # what is fetched from the L2 cache into L1 ahead of each weight stream
FROM_L2, FROM_L1 = 2, 3  # LLVM's words for the levels


class Lines:
    """Writes, into the module of the linear kernel, how it multiplies by vectors.

    Activations are widened to float32 block by block, [rows][ROW_FLOATS].
    """

    name = "lines"

    def __init__(self, emitter: FormatEmitter) -> None:
        self._emitter = emitter
        self._depth = 2 if emitter.narrow else 1  # values in a word
        self._block = BLOCK // self._depth  # steps of a block
        self._prefetch = emitter.declare("llvm.prefetch.p0", VOID, [PTR, I32, I32, I32])

    def begin(self, b: Any) -> Any:
        """Nothing has to be set up."""

    def end(self, b: Any, before: Any) -> None:
        """Nothing has to be put back."""

    def room(self, b: Any, rows: Any) -> Any:
        """Rows of sums that so many rows take."""
        return rows

    def prepare(
        self, b: Any, known: dict[str, Any], first_row: Any, rows: Any, packed: Any
    ) -> None:
        """Rows are packed by `emit_group`'s function, block by block."""

    def emit_group(self, read: Callable[[Any, Any], dict[str, Any]]) -> Any:
        """group(call, first_row, rows, sums, packed, first, stop): [strips][rows][strip] sums.

        Those of rows [first_row, first_row + rows) and strips [first, stop). All of these advance
        by a block of k, whose activations stay in the cache meanwhile. `read(b, call)` gives the
        fields of a call.
        """
        pack, tiles = self._emit_pack(), self._emit_tiles()
        function, b = self._emitter.define("group", [PTR, I64, I64, PTR, PTR, I64, I64])
        call, first_row, rows, sums, packed, first, stop = function.args
        known = read(b, call)
        steps = known["steps"]
        lanes, strip_size = i64(self._emitter.unit.lanes), i64(self._emitter.unit.strip)
        strip_words, strip_sums = b.mul(strip_size, steps), b.mul(rows, strip_size)
        depth, panel = b.mul(steps, i64(self._depth)), b.mul(lanes, steps)
        height = ceil(b, rows, ceil(b, rows, i64(self._emitter.unit.max_rows)))
        with loop(b, i64(0), steps, i64(self._block)) as step:
            length = minimum(b, i64(self._block), b.sub(steps, step))
            done = b.add(b.mul(first_row, depth), b.mul(step, i64(self._depth)))
            x = at(b, known["x"], done, self._emitter.scalar)
            b.call(pack, [x, packed, rows, depth, b.mul(length, i64(self._depth))])
            is_first = b.icmp_signed("==", step, i64(0))
            pitch = b.select(is_first, i64(0), strip_size)
            with loop(b, first, stop) as strip:
                offset = b.add(b.mul(strip, strip_words), b.mul(step, lanes))
                weights = at(b, known["weights"], offset, I32)
                following = self._next_part(b, (first, strip, stop), strip_words, step, steps)
                mine = at(b, sums, b.mul(b.sub(strip, first), strip_sums), F32)
                bias = at(b, known["bias"], b.mul(strip, strip_size), F32)
                with loop(b, i64(0), rows, height) as row:
                    so_far = at(b, mine, b.mul(row, strip_size), F32)
                    start = b.select(is_first, bias, so_far)
                    ahead = b.select(b.icmp_signed("==", row, i64(0)), following, i64(0))
                    activations = at(b, packed, b.mul(row, i64(ROW_FLOATS)), F32)
                    arguments = [activations, weights, panel, start, pitch, so_far, length, ahead]
                    self._emitter.call_one_of(
                        b, tiles, minimum(b, height, b.sub(rows, row)), arguments
                    )
        b.ret_void()
        return function

    def _next_part(
        self, b: Any, strips: tuple[Any, ...], strip_words: Any, step: Any, steps: Any
    ) -> Any:
        """Words from what a thread multiplies now to what it multiplies next; 0 at its end.

        That is the next strip, then the next block of the group.
        """
        first, strip, stop = strips
        block = b.mul(i64(self._block), i64(self._emitter.unit.lanes))
        back = b.add(b.mul(b.sub(first, strip), strip_words), block)
        more = b.icmp_signed("<", b.add(step, i64(self._block)), steps)
        inside = b.icmp_signed("<", b.add(strip, i64(1)), stop)
        return b.select(inside, strip_words, b.select(more, back, i64(0)))

    def _emit_tiles(self) -> dict[int, Any]:
        return {rows: self._emit_tile(rows) for rows in range(1, self._emitter.unit.max_rows + 1)}

    def _emit_tile(self, rows: int) -> Any:
        """tile(x, weights, panel, start, pitch, sums, steps, ahead): a strip by a block of `rows`.

        `weights` are the strip's of this part of k, in panels `panel` words apart. The sums
        [rows][strip] go on from `start`, whose rows are `pitch` floats apart: the bias, with a
        pitch of 0, or what the part before left. The same words `ahead` words further are fetched.
        """
        function, b = self._emitter.define(f"tile{rows}", [PTR, PTR, I64, PTR, I64, PTR, I64, I64])
        x, weights, panel, start, pitch, sums, steps, ahead = function.args
        lanes, tile = self._emitter.unit.lanes, self._emitter.unit.tile(rows)
        vectors = tile.vectors
        emit_step = self._emit_step if tile.keeps_weights else self._emit_step_by_rows
        with b.goto_entry_block():
            chains = [[b.alloca(self._emitter.floats) for _ in range(vectors)] for _ in range(rows)]
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
            for row, v, place in places:
                address = at(b, start, b.add(b.mul(i64(row), pitch), place), F32)
                b.store(b.load(address, align=4, typ=self._emitter.floats), chains[row][v])
            with loop(b, i64(0), steps) as step:
                emit_step(b, x, panels, chains, step, ahead)
            for row, v, place in places:
                target = at(b, sums, b.add(i64(row * self._emitter.unit.strip), place), F32)
                b.store(b.load(chains[row][v], typ=self._emitter.floats), target, align=4)
        b.ret_void()
        return function

    def _emit_step(
        self, b: Any, x: Any, panels: list[Any], chains: list[list[Any]], step: Any, ahead: Any
    ) -> None:
        """Advance every chain of the tile by the values of one word per output."""
        lanes = self._emitter.unit.lanes
        weights = []
        for panel in panels:
            address = at(b, panel, b.mul(step, i64(lanes)), I32)
            word = b.load(address, align=4 * lanes, typ=self._emitter.ints)
            weights.append(
                [b.bitcast(value, self._emitter.floats) for value in self._values(b, word)]
            )
            self._fetch_next(b, address, ahead)
        activations = at(b, x, b.mul(step, i64(self._depth)), F32)
        for k in range(self._depth):
            for row, row_chains in enumerate(chains):
                scalar = b.load(at(b, activations, i64(row * ROW_FLOATS + k), F32), typ=F32)
                factor = self._emitter.splat(b, scalar, self._emitter.floats)
                for weight, chain in zip(weights, row_chains, strict=True):
                    total = b.load(chain, typ=self._emitter.floats)
                    b.store(b.call(self._emitter.fma, [weight[k], factor, total]), chain)

    def _emit_step_by_rows(
        self, b: Any, x: Any, panels: list[Any], chains: list[list[Any]], step: Any, ahead: Any
    ) -> None:
        """The same with the rows' activations in registers, a vector of weights after another.

        The weights of a word are loaded for each of its values anew: kept, or loaded early, they
        would take the registers of sums. Hence the fences, across which no load is moved.
        """
        lanes = self._emitter.unit.lanes
        addresses = [at(b, panel, b.mul(step, i64(lanes)), I32) for panel in panels]
        for address in addresses:
            self._fetch_next(b, address, ahead)
        activations = at(b, x, b.mul(step, i64(self._depth)), F32)
        for k in range(self._depth):
            factors = []
            for row in range(len(chains)):
                scalar = b.load(at(b, activations, i64(row * ROW_FLOATS + k), F32), typ=F32)
                factors.append(self._emitter.splat(b, scalar, self._emitter.floats))
            for v, address in enumerate(addresses):
                b.asm(ir.FunctionType(VOID, []), "", "~{memory}", [], side_effect=True)
                word = b.load(address, align=4 * lanes, typ=self._emitter.ints)
                weight = b.bitcast(self._values(b, word)[k], self._emitter.floats)
                for row_chains, factor in zip(chains, factors, strict=True):
                    total = b.load(row_chains[v], typ=self._emitter.floats)
                    b.store(b.call(self._emitter.fma, [weight, factor, total]), row_chains[v])

    def _values(self, b: Any, word: Any) -> list[Any]:
        """The bits of the float32 values in each word of a vector, in order of k."""
        if self._depth == 1:
            return [word]
        return [b.shl(word, self._emitter.whole(16)), b.and_(word, self._emitter.whole(0xFFFF0000))]

    def _fetch_next(self, b: Any, address: Any, ahead: Any) -> None:
        """What a weight stream comes to soon, and so many words later."""
        self._fetch(b, at(b, address, ahead, I32), FROM_L2)
        self._fetch(b, at(b, address, i64(NEAR_BYTES // 4), I32), FROM_L1)

    def _fetch(self, b: Any, address: Any, level: int) -> None:
        """Prefetches data to read into a level of the caches and those behind it."""
        flags = (ir.Constant(I32, flag) for flag in (0, level, 1))
        b.call(self._prefetch, [address, *flags])

    def _emit_pack(self) -> Any:
        """pack(x, packed, rows, depth, values): widen so many values of rows that have `depth`."""
        function, b = self._emitter.define("pack", [PTR, PTR, I64, I64, I64])
        x, packed, rows, depth, values = function.args
        lanes = i64(self._emitter.unit.lanes)
        whole = b.mul(b.sdiv(values, lanes), lanes)
        with loop(b, i64(0), rows) as row:
            source = at(b, x, b.mul(row, depth), self._emitter.scalar)
            target = at(b, packed, b.mul(row, i64(ROW_FLOATS)), F32)
            with loop(b, i64(0), whole, lanes) as k:
                b.store(self._emitter.load(b, source, k), at(b, target, k, F32), align=4)
                # the next block, or the weights push it out of the cache meanwhile
                self._fetch(b, at(b, source, b.add(k, i64(BLOCK)), self._emitter.scalar), FROM_L2)
            with loop(b, whole, values) as k:
                b.store(self._load_one(b, source, k), at(b, target, k, F32), align=4)
        b.ret_void()
        return function

    def _load_one(self, b: Any, base: Any, index: Any) -> Any:
        """The float32 value at scalar number `index`."""
        address = at(b, base, index, self._emitter.scalar)
        if not self._emitter.narrow:
            return b.load(address, align=4, typ=F32)
        word = b.zext(b.load(address, align=2, typ=self._emitter.scalar), I32)
        return b.bitcast(b.shl(word, ir.Constant(I32, 16)), F32)
