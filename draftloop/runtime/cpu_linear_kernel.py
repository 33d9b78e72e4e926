"""The compiled kernel of `cpu_linear`: LLVM IR, written with llvmlite and compiled in the process.

One function per weight format and vector unit, `linear(call)`, multiplies a block of rows by a
packed matrix. Importing this module requires llvmlite; `cpu_linear` is the way in.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any

import torch
from llvmlite import ir

from draftloop.runtime.cpu_tiles_kernel import Tiles
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
from draftloop.runtime.team import Team

BLOCK = 512  # values along k that a tile takes at a time: those of its rows stay in the L1 cache
# Floats between two rows of a block: not a power of two, or all rows fall into the same cache sets.
ROW_FLOATS = BLOCK + 16
NEAR_BYTES = 512  # what is fetched from the L2 cache into L1 ahead of each weight stream
FROM_L2, FROM_L1 = 2, 3  # LLVM's words for the levels
JOB_ROWS = 128  # at a time; a thread's widened activations and sums then fit the L2 cache
SUMS_FLOATS = 1 << 15  # of the strips that a thread takes at a time
MIN_WORK_PER_THREAD = 1 << 21  # multiply-adds; for less, waking a thread costs more than it saves
WEIGHT_WORK = 4  # multiply-adds that take as long as fetching a weight

CALL = struct.Struct("9q")
# `gated`: where SiLU of the first half of the outputs times the second half goes instead of `out`,
# dense, or 0. The halves must begin with a strip.
CALL_FIELDS = ("x", "weights", "bias", "out", "rows", "steps", "outputs", "threads", "gated")
UNITS_PER_THREAD = 4  # at least, where there are as many strips
POINTERS = ("x", "weights", "bias", "out")


class _LinearEmitter(FormatEmitter):
    """Writes the LLVM module of one weight format for one vector unit.

    A *word* is 32 bits: one float32, or two bfloat16 that follow one another along k. A *step* is
    the part of k that one word spans. Weights lie in panels of `lanes` outputs, [steps][lanes]
    words each; activations are widened to float32 block by block, [rows][ROW_FLOATS].
    """

    entry, part = "linear", "linear_part"

    def __init__(self, unit: VectorUnit, dtype: torch.dtype) -> None:
        super().__init__(unit, dtype)
        self.team = Team(self)
        self.depth = 4 // dtype.itemsize  # values in a word
        self.block = BLOCK // self.depth  # steps of a block
        scalars = ir.VectorType(self.scalar, unit.lanes)
        self.masked_store = self.declare(
            f"llvm.masked.store.v{unit.lanes}{'i16' if self.depth == 2 else 'f32'}.p0",
            VOID,
            [scalars, PTR, I32, ir.VectorType(I1, unit.lanes)],
        )
        self.prefetch = self.declare("llvm.prefetch.p0", VOID, [PTR, I32, I32, I32])

    def fetch(self, b: Any, address: Any, level: int) -> None:
        """Prefetches data to read into a level of the caches and those behind it."""
        flags = (ir.Constant(I32, flag) for flag in (0, level, 1))
        b.call(self.prefetch, [address, *flags])

    def values(self, b: Any, word: Any) -> list[Any]:
        """The bits of the float32 values in each word of a vector, in order of k."""
        if self.depth == 1:
            return [word]
        return [b.shl(word, self.whole(16)), b.and_(word, self.whole(0xFFFF0000))]

    def emit_store(self) -> Any:
        """store(sums, out, outputs, valid, rows): round a strip's sums [rows][strip] into `out`.

        Rows of `out` are `outputs` apart; only the first `valid` columns exist.
        """
        function, b = self.define("store", [PTR, PTR, I64, I64, I64])
        sums, out, outputs, valid, rows = function.args
        lanes, strip = i64(self.unit.lanes), i64(self.unit.strip)
        lane = ir.Constant(self.ints, list(range(self.unit.lanes)))
        with loop(b, i64(0), strip, lanes) as column:
            left = self.splat(b, b.trunc(b.sub(valid, column), I32), self.ints)
            mask = b.icmp_signed("<", lane, left)
            with loop(b, i64(0), rows) as row:
                source = at(b, sums, b.add(b.mul(row, strip), column), F32)
                value = b.load(source, align=4, typ=self.floats)
                target = at(b, out, b.add(b.mul(row, outputs), column), self.scalar)
                align = ir.Constant(I32, 2)
                b.call(self.masked_store, [self.rounded(b, value), target, align, mask])
        b.ret_void()
        return function

    def emit_store_gated(self) -> Any:
        """store_gated(sums, ups, out, width, rows): the strip whose sums are these two's, gated.

        Rows of `out` are `width` apart.
        """
        function, b = self.define("store_gated", [PTR, PTR, PTR, I64, I64])
        sums, ups, out, width, rows = function.args
        lanes, strip = i64(self.unit.lanes), i64(self.unit.strip)
        with loop(b, i64(0), rows) as row, loop(b, i64(0), strip, lanes) as column:
            place = b.add(b.mul(row, strip), column)
            gate, up = (
                self.nearest(b, b.load(at(b, base, place, F32), align=4, typ=self.floats))
                for base in (sums, ups)
            )
            self.store(b, self.gated(b, gate, up), out, b.add(b.mul(row, width), column))
        b.ret_void()
        return function

    def emit_tile(self, rows: int) -> Any:
        """tile(x, weights, panel, start, pitch, sums, steps, ahead): a strip by a block of `rows`.

        `weights` are the strip's of this part of k, in panels `panel` words apart. The sums
        [rows][strip] go on from `start`, whose rows are `pitch` floats apart: the bias, with a
        pitch of 0, or what the part before left. The same words `ahead` words further are fetched.
        """
        function, b = self.define(f"tile{rows}", [PTR, PTR, I64, PTR, I64, PTR, I64, I64])
        x, weights, panel, start, pitch, sums, steps, ahead = function.args
        lanes, tile = self.unit.lanes, self.unit.tile(rows)
        vectors = tile.vectors
        emit_step = self.emit_step if tile.keeps_weights else self.emit_step_by_rows
        with b.goto_entry_block():
            chains = [[b.alloca(self.floats) for _ in range(vectors)] for _ in range(rows)]
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
                b.store(b.load(address, align=4, typ=self.floats), chains[row][v])
            with loop(b, i64(0), steps) as step:
                emit_step(b, x, panels, chains, step, ahead)
            for row, v, place in places:
                target = at(b, sums, b.add(i64(row * self.unit.strip), place), F32)
                b.store(b.load(chains[row][v], typ=self.floats), target, align=4)
        b.ret_void()
        return function

    def emit_step(
        self, b: Any, x: Any, panels: list[Any], chains: list[list[Any]], step: Any, ahead: Any
    ) -> None:
        """Advance every chain of the tile by the values of one word per output."""
        lanes = self.unit.lanes
        weights = []
        for panel in panels:
            address = at(b, panel, b.mul(step, i64(lanes)), I32)
            word = b.load(address, align=4 * lanes, typ=self.ints)
            weights.append([b.bitcast(value, self.floats) for value in self.values(b, word)])
            self.fetch_next(b, address, ahead)
        activations = at(b, x, b.mul(step, i64(self.depth)), F32)
        for k in range(self.depth):
            for row, row_chains in enumerate(chains):
                scalar = b.load(at(b, activations, i64(row * ROW_FLOATS + k), F32), typ=F32)
                factor = self.splat(b, scalar, self.floats)
                for weight, chain in zip(weights, row_chains, strict=True):
                    total = b.load(chain, typ=self.floats)
                    b.store(b.call(self.fma, [weight[k], factor, total]), chain)

    def emit_step_by_rows(
        self, b: Any, x: Any, panels: list[Any], chains: list[list[Any]], step: Any, ahead: Any
    ) -> None:
        """The same with the rows' activations in registers, a vector of weights after another.

        The weights of a word are loaded for each of its values anew: kept, or loaded early, they
        would take the registers of sums. Hence the fences, across which no load is moved.
        """
        lanes = self.unit.lanes
        addresses = [at(b, panel, b.mul(step, i64(lanes)), I32) for panel in panels]
        for address in addresses:
            self.fetch_next(b, address, ahead)
        activations = at(b, x, b.mul(step, i64(self.depth)), F32)
        for k in range(self.depth):
            factors = []
            for row in range(len(chains)):
                scalar = b.load(at(b, activations, i64(row * ROW_FLOATS + k), F32), typ=F32)
                factors.append(self.splat(b, scalar, self.floats))
            for v, address in enumerate(addresses):
                b.asm(ir.FunctionType(VOID, []), "", "~{memory}", [], side_effect=True)
                word = b.load(address, align=4 * lanes, typ=self.ints)
                weight = b.bitcast(self.values(b, word)[k], self.floats)
                for row_chains, factor in zip(chains, factors, strict=True):
                    total = b.load(row_chains[v], typ=self.floats)
                    b.store(b.call(self.fma, [weight, factor, total]), row_chains[v])

    def fetch_next(self, b: Any, address: Any, ahead: Any) -> None:
        """What a weight stream comes to soon, and so many words later."""
        self.fetch(b, at(b, address, ahead, I32), FROM_L2)
        self.fetch(b, at(b, address, i64(NEAR_BYTES // 4), I32), FROM_L1)

    def emit_pack(self) -> Any:
        """pack(x, packed, rows, depth, values): widen so many values of rows that have `depth`."""
        function, b = self.define("pack", [PTR, PTR, I64, I64, I64])
        x, packed, rows, depth, values = function.args
        lanes = i64(self.unit.lanes)
        whole = b.mul(b.sdiv(values, lanes), lanes)
        with loop(b, i64(0), rows) as row:
            source = at(b, x, b.mul(row, depth), self.scalar)
            target = at(b, packed, b.mul(row, i64(ROW_FLOATS)), F32)
            with loop(b, i64(0), whole, lanes) as k:
                b.store(self.load(b, source, k), at(b, target, k, F32), align=4)
                # the next block, or the weights push it out of the cache meanwhile
                self.fetch(b, at(b, source, b.add(k, i64(BLOCK)), self.scalar), FROM_L2)
            with loop(b, whole, values) as k:
                b.store(self.load_one(b, source, k), at(b, target, k, F32), align=4)
        b.ret_void()
        return function

    def emit_part(self) -> Any:
        """linear_part(call, team): what one thread of a team does of a call; then it waits."""
        keep = self.emit_keep()
        lines = self.emit_way("lines_part", None, self.emit_group(), keep)
        tiles = Tiles(self) if self.unit.tiles and self.narrow else None
        function, b = self.define(self.part, [PTR, PTR])
        if tiles is None:
            b.call(lines, function.args)
        else:
            group = tiles.emit_group(lambda b, call: self.record(b, call, CALL_FIELDS, POINTERS))
            whole = self.emit_way("tiles_part", tiles, group, keep)
            known = self.record(b, function.args[0], CALL_FIELDS, POINTERS)
            with b.if_else(tiles.fit(b, known["steps"])) as (then, otherwise):
                with then:
                    b.call(whole, function.args)
                with otherwise:
                    b.call(lines, function.args)
        b.ret_void()
        return function

    def emit_way(self, name: str, tiles: Tiles | None, group: Any, keep: Any) -> Any:
        """name(call, team): the same, by `tiles` or without them.

        A thread takes some strips, then some more: one that the machine disturbs does less.
        """
        function, b = self.define(name, [PTR, PTR])
        call, team = function.args
        known = self.record(b, call, CALL_FIELDS, POINTERS)
        sums, packed = b.alloca(F32, SUMS_FLOATS), b.alloca(F32, JOB_ROWS * ROW_FLOATS)
        sums.align = packed.align = 64
        before = tiles.begin(b) if tiles else None
        halves, strips = self.halves_of(b, known)
        size = self.team.size(b)
        with loop(b, i64(0), known["rows"], i64(JOB_ROWS)) as first_row:
            rows = minimum(b, i64(JOB_ROWS), b.sub(known["rows"], first_row))
            room = tiles.whole(b, rows) if tiles else rows
            unit = self.unit_of(b, known, room, size)
            if tiles:
                tiles.prepare(b, known, first_row, rows, packed)
            with self.team.taking(b, team, unit, strips) as (first, stop):
                values = b.mul(b.mul(b.sub(stop, first), room), i64(self.unit.strip))
                with loop(b, i64(0), halves) as half:
                    mine = at(b, sums, b.mul(half, values), F32)
                    ends = [b.add(b.mul(half, strips), end) for end in (first, stop)]
                    b.call(group, [call, first_row, rows, mine, packed, *ends])
                ups = at(b, sums, values, F32)
                b.call(keep, [call, first_row, rows, room, sums, ups, first, stop])
            self.team.wait(b, team)
        if tiles:
            tiles.end(b, before)
        b.ret_void()
        return function

    def halves_of(self, b: Any, known: dict[str, Any]) -> tuple[Any, Any]:
        """How many parts of the outputs are taken together, and the strips of each."""
        gated = b.icmp_signed("!=", known["gated"], i64(0))
        halves = b.select(gated, i64(2), i64(1))
        return halves, ceil(b, b.sdiv(known["outputs"], halves), i64(self.unit.strip))

    def emit_keep(self) -> Any:
        """keep(call, first_row, rows, room, sums, ups, first, stop): strips go where they belong.

        Each strip's sums have room for so many rows.
        """
        store, store_gated = self.emit_store(), self.emit_store_gated()
        function, b = self.define("keep", [PTR, I64, I64, I64, PTR, PTR, I64, I64])
        call, first_row, rows, room, sums, ups, first, stop = function.args
        known = self.record(b, call, CALL_FIELDS, POINTERS)
        strip_size, outputs = i64(self.unit.strip), known["outputs"]
        width = b.sdiv(outputs, i64(2))
        with loop(b, first, stop) as strip:
            place = b.mul(b.mul(b.sub(strip, first), room), strip_size)
            mine, up = at(b, sums, place, F32), at(b, ups, place, F32)
            column = b.mul(strip, strip_size)
            gated = b.icmp_signed("!=", known["gated"], i64(0))
            with b.if_else(gated) as (together, alone):
                with together:
                    target = b.add(b.mul(first_row, width), column)
                    target = at(b, b.inttoptr(known["gated"], PTR), target, self.scalar)
                    b.call(store_gated, [mine, up, target, width, rows])
                with alone:
                    target = b.add(b.mul(first_row, outputs), column)
                    target = at(b, known["out"], target, self.scalar)
                    b.call(store, [mine, target, outputs, b.sub(outputs, column), rows])
        b.ret_void()
        return function

    def emit_group(self) -> Any:
        """group(call, first_row, rows, sums, packed, first, stop): [strips][rows][strip] sums.

        Those of rows [first_row, first_row + rows) and strips [first, stop). All of these advance
        by a block of k, whose activations stay in the cache meanwhile.
        """
        pack, tiles = self.emit_pack(), self.emit_tiles()
        function, b = self.define("group", [PTR, I64, I64, PTR, PTR, I64, I64])
        call, first_row, rows, sums, packed, first, stop = function.args
        known = self.record(b, call, CALL_FIELDS, POINTERS)
        steps = known["steps"]
        lanes, strip_size = i64(self.unit.lanes), i64(self.unit.strip)
        strip_words, strip_sums = b.mul(strip_size, steps), b.mul(rows, strip_size)
        depth, panel = b.mul(steps, i64(self.depth)), b.mul(lanes, steps)
        height = ceil(b, rows, ceil(b, rows, i64(self.unit.max_rows)))
        with loop(b, i64(0), steps, i64(self.block)) as step:
            length = minimum(b, i64(self.block), b.sub(steps, step))
            done = b.add(b.mul(first_row, depth), b.mul(step, i64(self.depth)))
            x = at(b, known["x"], done, self.scalar)
            b.call(pack, [x, packed, rows, depth, b.mul(length, i64(self.depth))])
            is_first = b.icmp_signed("==", step, i64(0))
            pitch = b.select(is_first, i64(0), strip_size)
            with loop(b, first, stop) as strip:
                offset = b.add(b.mul(strip, strip_words), b.mul(step, lanes))
                weights = at(b, known["weights"], offset, I32)
                following = self.next_part(b, (first, strip, stop), strip_words, step, steps)
                mine = at(b, sums, b.mul(b.sub(strip, first), strip_sums), F32)
                bias = at(b, known["bias"], b.mul(strip, strip_size), F32)
                with loop(b, i64(0), rows, height) as row:
                    so_far = at(b, mine, b.mul(row, strip_size), F32)
                    start = b.select(is_first, bias, so_far)
                    ahead = b.select(b.icmp_signed("==", row, i64(0)), following, i64(0))
                    activations = at(b, packed, b.mul(row, i64(ROW_FLOATS)), F32)
                    arguments = [activations, weights, panel, start, pitch, so_far, length, ahead]
                    self.call_one_of(b, tiles, minimum(b, height, b.sub(rows, row)), arguments)
        b.ret_void()
        return function

    def next_part(
        self, b: Any, strips: tuple[Any, ...], strip_words: Any, step: Any, steps: Any
    ) -> Any:
        """Words from what a thread multiplies now to what it multiplies next; 0 at its end.

        That is the next strip, then the next block of the group.
        """
        first, strip, stop = strips
        block = b.mul(i64(self.block), i64(self.unit.lanes))
        back = b.add(b.mul(b.sub(first, strip), strip_words), block)
        more = b.icmp_signed("<", b.add(step, i64(self.block)), steps)
        inside = b.icmp_signed("<", b.add(strip, i64(1)), stop)
        return b.select(inside, strip_words, b.select(more, back, i64(0)))

    def load_one(self, b: Any, base: Any, index: Any) -> Any:
        """The float32 value at scalar number `index`."""
        address = at(b, base, index, self.scalar)
        if not self.narrow:
            return b.load(address, align=4, typ=F32)
        word = b.zext(b.load(address, align=2, typ=self.scalar), I32)
        return b.bitcast(b.shl(word, ir.Constant(I32, 16)), F32)

    def emit_tiles(self) -> dict[int, Any]:
        return {rows: self.emit_tile(rows) for rows in range(1, self.unit.max_rows + 1)}

    def emit_linear(self) -> str:
        """linear(call), the entry: a team for this call alone; returns the text of the module."""
        part = self.emit_part()
        member, b = self.define("member", [PTR])
        (shared,) = member.args
        b.call(part, [b.load(at(b, shared, i64(n), PTR), typ=PTR) for n in (0, 1)])
        b.ret_void()
        function, b = self.define(self.entry, [PTR])
        (call,) = function.args
        known = self.record(b, call, CALL_FIELDS, POINTERS)
        rows, depth = known["rows"], b.mul(known["steps"], i64(self.depth))
        most = minimum(b, rows, i64(JOB_ROWS))
        work = b.mul(b.mul(b.add(most, i64(WEIGHT_WORK)), depth), known["outputs"])
        threads = minimum(b, known["threads"], b.sdiv(work, i64(MIN_WORK_PER_THREAD)))
        shared = b.alloca(PTR, 2)
        for n, pointer in enumerate((call, self.team.record(b))):
            b.store(pointer, at(b, shared, i64(n), PTR))
        self.team.run(b, member, shared, threads)
        b.ret_void()
        return str(self.module)

    def unit_of(self, b: Any, known: dict[str, Any], rows: Any, threads: Any) -> Any:
        """How many strips a thread takes at a time: no more than it can keep sums of."""
        halves, strips = self.halves_of(b, known)
        takers = b.mul(maximum(b, threads, i64(1)), i64(UNITS_PER_THREAD))
        strip_sums = b.mul(b.mul(maximum(b, rows, i64(1)), i64(self.unit.strip)), halves)
        most = b.sdiv(i64(SUMS_FLOATS), strip_sums)
        return minimum(b, most, maximum(b, b.sdiv(strips, takers), i64(1)))


@functools.cache
def compiled(unit: VectorUnit, dtype: torch.dtype) -> Callable[[bytes], None]:
    """The kernel: a function of one packed `CALL`."""
    return compile_module(_LinearEmitter(unit, dtype).emit_linear(), _LinearEmitter.entry)
