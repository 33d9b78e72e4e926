"""The compiled kernel of `cpu_linear`: LLVM IR, built with llvmlite and compiled in the process.

One function per weight format and vector unit, `linear(call)`, multiplies a block of rows by a
packed matrix. Importing this module requires llvmlite; used through `cpu_linear`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any

import torch
from llvmlite import ir

from draftloop.runtime.cpu_byte_dots_kernel import ByteDots
from draftloop.runtime.cpu_bytes_kernel import Bytes
from draftloop.runtime.cpu_dots_kernel import Dots
from draftloop.runtime.cpu_linear_way import WORD_BITS, Block, Way
from draftloop.runtime.cpu_lines_kernel import ROW_FLOATS, Lines
from draftloop.runtime.cpu_nibbles_kernel import NibbleDots, NibbleSums
from draftloop.runtime.cpu_tiles_kernel import Tiles
from draftloop.runtime.llvm import (
    F32,
    I1,
    I32,
    I64,
    PTR,
    VOID,
    FormatEmitter,
    at,
    ceil,
    compile_module,
    i64,
    loop,
    maximum,
    minimum,
)
from draftloop.runtime.quantization import Format
from draftloop.runtime.team import Team
from draftloop.runtime.vector_unit import VectorUnit

JOB_ROWS = 128  # rows at a time, so that a thread's packed activations and sums fit the L2 cache
SUMS_FLOATS = 1 << 15  # sums of the strips that a thread takes at a time
MIN_WORK_PER_THREAD = 1 << 21  # multiply-adds; for less, waking a thread costs more than it saves
WEIGHT_WORK = 4  # multiply-adds that take as long as fetching a weight

CALL = struct.Struct("14q")
# `gated`: if not 0, SiLU of the first half of the outputs times the second half is written there,
# densely, instead of to `out`; each half must begin with a strip. `next`: weights that the same
# threads multiply by next, or 0; `next_strips` counts those of one half if it has halves. `bits`,
# `scales`: of integer weights, else 0.
CALL_FIELDS = (
    "x", "weights", "bias", "scales", "bits", "out", "rows", "steps", "outputs", "threads", "gated",
    "next", "next_steps", "next_strips",
)  # fmt: skip
UNITS_PER_THREAD = 4  # at least, if there are enough strips
POINTERS = ("x", "weights", "bias", "scales", "out")
WORD_BYTES = WORD_BITS // 8


class _LinearEmitter(FormatEmitter):
    """Emits the LLVM module of one format of activations for one vector unit.

    Weights are of that format, or integers if `form` is given. A *word* is 32 bits: one float32,
    two bfloat16, four bytes or eight nibbles, adjacent along k. A *step* is the part of k that one
    word of weights spans. Weights are stored in panels of `lanes` outputs, [steps][lanes] words
    each; a strip of outputs consists of some panels, which `Lines`, `Dots`, `Tiles`, `Bytes`,
    `ByteDots`, `NibbleDots` or `NibbleSums` multiply by rows.
    """

    entry, part = "linear", "linear_part"

    def __init__(self, unit: VectorUnit, dtype: torch.dtype, form: Format | None) -> None:
        super().__init__(unit, dtype)
        self.form = form
        self.team = Team(self)
        scalars = ir.VectorType(self.scalar, unit.lanes)
        self.masked_store = self.declare(
            f"llvm.masked.store.v{unit.lanes}{'i16' if self.depth == 2 else 'f32'}.p0",
            VOID,
            [scalars, PTR, I32, ir.VectorType(I1, unit.lanes)],
        )

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

    def emit_part(self) -> Any:
        """linear_part(call, team): what one thread of a team does of a call; then it waits."""
        keep = self.emit_keep()
        by_dots, by_tiles = (has and self.narrow for has in (self.unit.dots, self.unit.tiles))
        tiles = Tiles(self) if by_tiles else None
        whole = self.emit_way(tiles, keep) if tiles else None
        small = {bits: self.emit_way(way, keep) for bits, way in self.integers().items()}
        lines = self.emit_way(Dots(self) if by_dots else Lines(self), keep)
        function, b = self.define(self.part, [PTR, PTR])
        known = self.record(b, function.args[0], CALL_FIELDS, POINTERS)
        for bits, way in small.items():
            with b.if_then(b.icmp_signed("==", known["bits"], i64(bits))):
                b.call(way, function.args)
                b.ret_void()
        if tiles is not None:
            with b.if_then(tiles.fit(b, known["steps"])):
                b.call(whole, function.args)
                b.ret_void()
        b.call(lines, function.args)
        b.ret_void()
        return function

    def integers(self) -> dict[int, Way]:
        """The ways for integer weights, by bits; 4-bit models need 8 bits as well, for heads."""
        if self.form is None:
            return {}
        bits = self.form.activations
        by_words = bits == 8 and self.unit.byte_dots
        ways: dict[int, Way] = {8: ByteDots(self) if by_words else Bytes(self, bits)}
        if self.form.weights == 4:
            ways[4] = NibbleDots(self) if by_words else NibbleSums(self)
        return ways

    def emit_way(self, way: Way, keep: Any) -> Any:
        """lines_part(call, team), tiles_part(call, team): `emit_part` for one way of multiplying.

        A thread takes its strips in groups, and prefetches the next weights meanwhile, since most
        calls are bound by memory.
        """
        group = self.emit_group(way)
        function, b = self.define(f"{way.name}_part", [PTR, PTR])
        call, team = function.args
        known = self.record(b, call, CALL_FIELDS, POINTERS)
        sums, packed = b.alloca(F32, SUMS_FLOATS), b.alloca(F32, JOB_ROWS * ROW_FLOATS)
        sums.align = packed.align = 64
        before = way.begin(b)
        halves, strips = self.halves_of(b, known)
        size = self.team.size(b)
        with loop(b, i64(0), known["rows"], i64(JOB_ROWS)) as first_row:
            rows = minimum(b, i64(JOB_ROWS), b.sub(known["rows"], first_row))
            room = way.room(b, rows)
            unit = self.unit_of(b, known, room, size)
            with b.if_then(b.not_(self.in_parts(b, way, known))):  # once for all strips
                self.emit_packing(b, way, known, (first_row, rows, i64(0)), packed)
            with self.team.take_chunks(b, team, unit, strips) as (first, stop, part_stop):
                values = b.mul(b.mul(b.sub(stop, first), room), i64(self.unit.strip))
                with loop(b, i64(0), halves) as half:
                    half_sums = at(b, sums, b.mul(half, values), F32)
                    ends = [b.add(b.mul(half, strips), end) for end in (first, stop)]
                    after_group = self.words_after_group(b, known, half, (first, stop, part_stop))
                    b.call(group, [call, first_row, rows, half_sums, packed, *ends, after_group])
                ups = at(b, sums, values, F32)
                b.call(keep, [call, first_row, rows, room, sums, ups, first, stop])
            self.team.wait(b, team)
        way.end(b, before)
        b.ret_void()
        return function

    def emit_group(self, way: Way) -> Any:
        """lines_group, ..(call, first_row, rows, sums, packed, first, stop, behind): many blocks.

        The sums [strips][room][strip] of rows [first_row, first_row + rows) and strips
        [first, stop). All of them advance by one part of k, whose activations stay in the cache
        meanwhile. `after_group`: see `words_after_group`.
        """
        function, b = self.define(f"{way.name}_group", [PTR, I64, I64, PTR, PTR, I64, I64, I64])
        call, first_row, rows, sums, packed, first, stop, after_group = function.args
        known = self.record(b, call, CALL_FIELDS, POINTERS)
        steps, room, height = known["steps"], way.room(b, rows), way.height(b, rows)
        lanes, strip_size = i64(self.unit.lanes), i64(self.unit.strip)
        strip_words, strip_sums = b.mul(strip_size, steps), b.mul(room, strip_size)
        with loop(b, i64(0), steps, i64(way.block)) as step:
            with b.if_then(self.in_parts(b, way, known)):
                self.emit_packing(b, way, known, (first_row, rows, step), packed)
            is_first = b.icmp_signed("==", step, i64(0))
            with loop(b, first, stop) as strip:
                offset = b.add(b.mul(strip, strip_words), b.mul(step, lanes))
                own_sums = at(b, sums, b.mul(b.sub(strip, first), strip_sums), F32)
                bias = at(b, known["bias"], b.mul(strip, strip_size), F32)
                scaled = way.scales(b, strip, step, steps)
                scales = at(b, known["scales"], b.mul(scaled, strip_size), F32)
                place = (first, strip, stop, after_group)
                following = self.next_part(b, way, place, strip_words, step, steps)
                with loop(b, i64(0), rows, height) as row:
                    so_far = at(b, own_sums, b.mul(row, strip_size), F32)
                    block = Block(
                        row=row,
                        rows=minimum(b, height, b.sub(rows, row)),
                        room=room,
                        weights=at(b, known["weights"], offset, I32),
                        panel=b.mul(lanes, steps),
                        start=b.select(is_first, bias, so_far),
                        pitch=b.select(is_first, i64(0), strip_size),
                        sums=so_far,
                        scales=scales,
                        steps=minimum(b, i64(way.block), b.sub(steps, step)),
                        following=following,
                    )
                    way.multiply(b, packed, block)
        b.ret_void()
        return function

    def in_parts(self, b: Any, way: Way, known: dict[str, Any]) -> Any:
        """Whether k exceeds what is processed at a time, so that rows are packed part by part."""
        return b.icmp_signed(">", known["steps"], i64(way.block))

    def emit_packing(
        self, b: Any, way: Way, known: dict[str, Any], place: tuple[Any, Any, Any], packed: Any
    ) -> None:
        """Packs the rows processed at a time; `place`: first row, number of rows, start along k."""
        first_row, rows, step = place
        steps = known["steps"]
        word = b.mul(b.add(b.mul(first_row, steps), step), i64(way.step_words))
        x = at(b, known["x"], word, I32)
        length = minimum(b, i64(way.block), b.sub(steps, step))
        way.pack(b, x, packed, rows, steps, length)

    def next_part(
        self, b: Any, way: Way, place: tuple[Any, ...], strip_words: Any, step: Any, steps: Any
    ) -> Any:
        """Distance in words from the weights that a thread uses now to those it uses next.

        These are the next strip, then the next part of the group, then what follows the group.
        """
        first, strip, stop, after_group = place
        lanes = i64(self.unit.lanes)
        back = b.sub(b.mul(i64(way.block), lanes), b.mul(b.sub(strip, first), strip_words))
        more = b.icmp_signed("<", b.add(step, i64(way.block)), steps)
        inside = b.icmp_signed("<", b.add(strip, i64(1)), stop)
        ended = b.sub(after_group, b.mul(step, lanes))
        return b.select(inside, strip_words, b.select(more, back, ended))

    def words_after_group(
        self, b: Any, known: dict[str, Any], half: Any, taken: tuple[Any, Any, Any]
    ) -> Any:
        """Distance in words from the last strip of a group to the weights its thread uses next.

        These are the same strips of the other half, then the next strips of its part, then the
        beginning of its part of the next matrix; 0 if unknown.
        """
        first, stop, part_stop = taken
        halves, strips = self.halves_of(b, known)
        size, last = i64(self.unit.strip), b.sub(stop, i64(1))
        others = b.mul(b.sub(halves, i64(1)), strips)
        to_other = b.sub(strips, b.sub(last, first))
        in_words = b.mul(size, known["steps"])
        here = b.mul(b.add(b.mul(half, strips), last), in_words)
        begun, _ = self.team.own_part(b, known["next_strips"])
        there = b.mul(b.mul(size, known["next_steps"]), begun)
        apart = b.sdiv(b.sub(known["next"], b.ptrtoint(known["weights"], I64)), i64(WORD_BYTES))
        is_known = b.icmp_signed("!=", known["next"], i64(0))
        beyond = b.select(is_known, b.sub(b.add(apart, there), here), i64(0))
        in_part = b.icmp_signed("<", stop, part_stop)
        then = b.select(in_part, b.mul(b.sub(i64(1), others), in_words), beyond)
        is_last = b.icmp_signed("==", b.add(half, i64(1)), halves)
        return b.select(is_last, then, b.mul(to_other, in_words))

    def halves_of(self, b: Any, known: dict[str, Any]) -> tuple[Any, Any]:
        """How many parts of the outputs are computed together, and the strips of each."""
        gated = b.icmp_signed("!=", known["gated"], i64(0))
        halves = b.select(gated, i64(2), i64(1))
        return halves, ceil(b, b.sdiv(known["outputs"], halves), i64(self.unit.strip))

    def emit_keep(self) -> Any:
        """keep(call, first_row, rows, room, sums, ups, first, stop): stores strips in the output.

        Each strip's sums have room for `room` rows.
        """
        store, store_gated = self.emit_store(), self.emit_store_gated()
        function, b = self.define("keep", [PTR, I64, I64, I64, PTR, PTR, I64, I64])
        call, first_row, rows, room, sums, ups, first, stop = function.args
        known = self.record(b, call, CALL_FIELDS, POINTERS)
        strip_size, outputs = i64(self.unit.strip), known["outputs"]
        width = b.sdiv(outputs, i64(2))
        with loop(b, first, stop) as strip:
            place = b.mul(b.mul(b.sub(strip, first), room), strip_size)
            own_sums, up = at(b, sums, place, F32), at(b, ups, place, F32)
            column = b.mul(strip, strip_size)
            gated = b.icmp_signed("!=", known["gated"], i64(0))
            with b.if_else(gated) as (together, alone):
                with together:
                    target = b.add(b.mul(first_row, width), column)
                    target = at(b, b.inttoptr(known["gated"], PTR), target, self.scalar)
                    b.call(store_gated, [own_sums, up, target, width, rows])
                with alone:
                    target = b.add(b.mul(first_row, outputs), column)
                    target = at(b, known["out"], target, self.scalar)
                    b.call(store, [own_sums, target, outputs, b.sub(outputs, column), rows])
        b.ret_void()
        return function

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
        rows = known["rows"]
        are_whole = b.icmp_signed("==", known["bits"], i64(0))
        in_word = b.sdiv(i64(WORD_BITS), maximum(b, known["bits"], i64(1)))
        values = b.select(are_whole, i64(self.depth), in_word)
        depth = b.mul(known["steps"], values)
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
        """How many strips a thread takes at a time; limited by its buffer for sums."""
        halves, strips = self.halves_of(b, known)
        takers = b.mul(maximum(b, threads, i64(1)), i64(UNITS_PER_THREAD))
        strip_sums = b.mul(b.mul(maximum(b, rows, i64(1)), i64(self.unit.strip)), halves)
        most = b.sdiv(i64(SUMS_FLOATS), strip_sums)
        return minimum(b, most, maximum(b, b.sdiv(strips, takers), i64(1)))


@functools.cache
def compiled(
    unit: VectorUnit, dtype: torch.dtype, form: Format | None = None
) -> Callable[[bytes], None]:
    """The kernel for activations of a format: a function of one packed `CALL`.

    For weights of that format and, if `form` is given, for integers of its bits and of 8 bits.
    """
    return compile_module(_LinearEmitter(unit, dtype, form).emit_linear(), _LinearEmitter.entry)
