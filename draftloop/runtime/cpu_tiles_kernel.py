"""Matrix tiles (AMX) for the bfloat16 kernel of `cpu_linear`: LLVM IR, built with llvmlite.

One instruction multiplies 16 rows by 16 outputs along 32 values of k, so 32 rows take little longer
than streaming the weights takes for one. Importing this module requires llvmlite.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from draftloop.runtime.cpu_linear_way import Block
from draftloop.runtime.llvm import (
    I32,
    I64,
    PTR,
    VOID,
    FormatEmitter,
    at,
    ceil,
    i64,
    loop,
)
from draftloop.runtime.vector_unit import STRIP_VECTORS

I8 = ir.IntType(8)
ROWS = 16  # of a tile
ROW_BYTES = 64
TILE_WORDS = ROWS * ROW_BYTES // 4
STEPS = ROW_BYTES // 4  # of k, in words, that a tile spans
BLOCK = 512  # steps at a time: the rows' values of a block stay in the L2 cache
# The record that configures the registers, 64-bit words: palette 1; the bytes in a row of each
# register, 16 bits; the rows of each, 8 bits. All registers are of one size.
CONFIG = (1, 0, *[ROW_BYTES * 0x0001_0001_0001_0001] * 2, 0, 0, ROWS * 0x0101_0101_0101_0101, 0)
# Registers: those of the strip's sums, of activations, and, taking turns, of weights.
SUMS, VALUES, WEIGHTS = range(STRIP_VECTORS), 4, (5, 6, 7)


class Tiles:
    """Emits, into the module of the linear kernel, multiplication by tiles.

    16 steps of a panel of weights form a tile as stored. Rows are padded to whole tiles; the
    content of padding rows does not matter. The sum of an output starts from its bias and proceeds
    along k, 32 values at a time, in an order that the processor fixes: as everywhere, it depends
    neither on other rows nor on the row's place.
    """

    name, block, step_words = "tiles", BLOCK, 1

    def __init__(self, emitter: FormatEmitter) -> None:
        self._emitter = emitter
        declare = emitter.declare
        self._load = declare("llvm.x86.tileloadd64", VOID, [I8, PTR, I64])
        self._store = declare("llvm.x86.tilestored64", VOID, [I8, PTR, I64])
        self._multiply = declare("llvm.x86.tdpbf16ps", VOID, [I8, I8, I8])
        self._configure = declare("llvm.x86.ldtilecfg", VOID, [PTR])
        self._save = declare("llvm.x86.sttilecfg", VOID, [PTR])
        self._pack, self._tile = self._emit_pack(), self._emit_tile()

    def scales(self, b: Any, strip: Any, step: Any, steps: Any) -> Any:
        """There are none."""
        return strip

    def begin(self, b: Any) -> Any:
        """Configures the thread's registers; returns how they were: other libraries use them."""
        with b.goto_entry_block():
            before, config = (b.alloca(I64, len(CONFIG)) for _ in range(2))
            before.align = config.align = 64
        b.call(self._save, [before])
        for place, word in enumerate(CONFIG):
            b.store(i64(word), at(b, config, i64(place), I64))
        b.call(self._configure, [config])
        return before

    def end(self, b: Any, before: Any) -> None:
        b.call(self._configure, [before])

    def fit(self, b: Any, steps: Any) -> Any:
        """Whether a matrix of `steps` steps consists of whole tiles."""
        return b.icmp_signed("==", b.srem(steps, i64(STEPS)), i64(0))

    def room(self, b: Any, rows: Any) -> Any:
        """The rows, padded to whole tiles."""
        return b.mul(ceil(b, rows, i64(ROWS)), i64(ROWS))

    def height(self, b: Any, rows: Any) -> Any:
        """The rows of a tile."""
        return i64(ROWS)

    def pack(self, b: Any, x: Any, packed: Any, rows: Any, pitch: Any, steps: Any) -> None:
        """Packs `steps` steps of rows, which are `pitch` words apart, in tiles."""
        b.call(self._pack, [x, packed, rows, pitch, steps])

    def multiply(self, b: Any, packed: Any, block: Block) -> None:
        """Adds the block's part of k to its sums."""
        x = at(b, packed, b.mul(block.row, i64(STEPS)), I32)
        x_pitch, pitch = b.mul(block.room, i64(STEPS)), b.mul(block.pitch, i64(4))
        arguments = [
            x, x_pitch, block.weights, block.panel, block.start, pitch, block.sums, block.steps,
        ]  # fmt: skip
        b.call(self._tile, arguments)

    def _emit_pack(self) -> Any:
        """pack(x, packed, rows, pitch, steps): to [steps / 16][whole rows][16] words.

        Rows of `x` are `pitch` words apart.
        """
        function, b = self._emitter.define("tiles_pack", [PTR, PTR, I64, I64, I64])
        x, packed, rows, pitch, steps = function.args
        words = ir.VectorType(I32, STEPS)
        room = self.room(b, rows)
        with loop(b, i64(0), rows) as row, loop(b, i64(0), steps, i64(STEPS)) as step:
            word = b.load(at(b, x, b.add(b.mul(row, pitch), step), I32), align=4, typ=words)
            target = b.add(b.mul(step, room), b.mul(row, i64(STEPS)))
            b.store(word, at(b, packed, target, I32), align=64)
        b.ret_void()
        return function

    def _emit_tile(self) -> Any:
        """tile(x, x_pitch, weights, panel, start, pitch, sums, steps): a strip by 16 rows.

        As `Block` says, but with `pitch` in bytes; tiles of `x` are `x_pitch` words apart.
        """
        function, b = self._emitter.define("tile", [PTR, I64, PTR, I64, PTR, I64, PTR, I64])
        x, x_pitch, weights, panel, start, pitch, sums, steps = function.args
        row_bytes = i64(ROW_BYTES)
        for v in SUMS:
            b.call(self._load, [I8(v), at(b, start, i64(v * ROW_BYTES), I8), pitch])
        with loop(b, i64(0), b.sdiv(steps, i64(STEPS))) as number:
            values = at(b, x, b.mul(number, x_pitch), I32)
            b.call(self._load, [I8(VALUES), values, row_bytes])
            first = b.mul(number, i64(TILE_WORDS))
            for v in SUMS:  # four streams of weights: one alone is read a tenth more slowly
                register = I8(WEIGHTS[v % len(WEIGHTS)])
                place = b.add(first, b.mul(panel, i64(v)))
                b.call(self._load, [register, at(b, weights, place, I32), row_bytes])
                b.call(self._multiply, [I8(v), I8(VALUES), register])
        for v in SUMS:
            target = at(b, sums, i64(v * ROW_BYTES), I8)
            b.call(self._store, [I8(v), target, i64(4 * self._emitter.unit.strip)])
        b.ret_void()
        return function
