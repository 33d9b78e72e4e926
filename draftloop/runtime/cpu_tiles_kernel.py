"""Matrix tiles (AMX) for the bfloat16 kernel of `cpu_linear`: LLVM IR, written with llvmlite.

One instruction multiplies up to 16 rows by 16 outputs along 32 values of k, so up to 32 rows take
little longer than what streaming the weights takes for one. The packed weights are what it reads:
16 words of 16 outputs each are a tile. Importing this module requires llvmlite.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    i64,
    loop,
    minimum,
)

I8 = ir.IntType(8)
ROWS = 16  # of a tile
ROW_BYTES = 64
TILE_WORDS = ROWS * ROW_BYTES // 4
STEPS = ROW_BYTES // 4  # of k, in words, that a tile spans
BLOCK = 512  # steps at a time: the rows' values of a block stay in the L2 cache
MOST_ROWS = 2 * ROWS  # that the eight registers serve at a time
# Words of the record that configures the registers; those of the bytes in a row and of the rows.
CONFIG_WORDS, CONFIG_BYTES, CONFIG_ROWS = 8, (2, 3), 6
# Registers: sums first, then activations, then weights.
SUMS, LOW, HIGH, WEIGHTS = (0, 1, 2, 3), 4, 5, (5, 6, 7)
WEIGHTS_BESIDE_HIGH = (6, 7)


class Tiles:
    """Writes, into the module of the linear kernel, how it multiplies by tiles.

    The sum of an output goes on from its bias along k, 32 values at a time in an order that the
    processor fixes: as everywhere, it depends neither on other rows nor on where the row is.
    """

    def __init__(self, emitter: FormatEmitter) -> None:
        self._emitter = emitter
        declare = emitter.declare
        self._load = declare("llvm.x86.tileloadd64", VOID, [I8, PTR, I64])
        self._store = declare("llvm.x86.tilestored64", VOID, [I8, PTR, I64])
        self._multiply = declare("llvm.x86.tdpbf16ps", VOID, [I8, I8, I8])
        self._configure = declare("llvm.x86.ldtilecfg", VOID, [PTR])
        self._save = declare("llvm.x86.sttilecfg", VOID, [PTR])

    def saved(self, b: Any) -> Any:
        """How the thread's registers are configured: other libraries use them, too."""
        with b.goto_entry_block():
            config = b.alloca(I64, CONFIG_WORDS)
            config.align = 64
        b.call(self._save, [config])
        return config

    def restore(self, b: Any, config: Any) -> None:
        b.call(self._configure, [config])

    def takes(self, b: Any, steps: Any) -> Any:
        """Whether a matrix of so many steps consists of whole tiles."""
        return b.icmp_signed("==", b.srem(steps, i64(STEPS)), i64(0))

    def emit_group(self, read: Any) -> Any:
        """group(call, first_row, rows, sums, packed, first, stop), as in `cpu_linear_kernel`.

        `read(b, call)` gives the fields of a call.
        """
        pack, narrow, wide = self._emit_pack(), self._emit_narrow(), self._emit_wide()
        arguments = [PTR, I64, I64, PTR, PTR, I64, I64]
        function, b = self._emitter.define("tiles_group", arguments)
        call, first_row, rows, sums, packed, first, stop = function.args
        known = read(b, call)
        config = self._empty_config(b)
        steps, strip = known["steps"], i64(self._emitter.unit.strip)
        strip_words, strip_sums = b.mul(strip, steps), b.mul(rows, strip)
        panel = b.mul(i64(self._emitter.unit.lanes), steps)
        with loop(b, i64(0), steps, i64(BLOCK)) as step:
            length = minimum(b, i64(BLOCK), b.sub(steps, step))
            done = b.add(b.mul(first_row, steps), step)
            b.call(pack, [at(b, known["x"], done, I32), packed, rows, steps, length])
            is_first = b.icmp_signed("==", step, i64(0))
            pitch = b.select(is_first, i64(0), b.mul(strip, i64(4)))
            with loop(b, i64(0), rows, i64(MOST_ROWS)) as row:
                height = minimum(b, i64(MOST_ROWS), b.sub(rows, row))
                self._configure_for(b, config, height)
                with loop(b, first, stop) as number:
                    place = b.mul(step, i64(self._emitter.unit.lanes))
                    weights = at(b, known["weights"], b.add(b.mul(number, strip_words), place), I32)
                    mine = b.add(b.mul(b.sub(number, first), strip_sums), b.mul(row, strip))
                    so_far = at(b, sums, mine, F32)
                    bias = at(b, known["bias"], b.mul(number, strip), F32)
                    start = b.select(is_first, bias, so_far)
                    x = at(b, packed, b.mul(row, i64(STEPS)), I32)
                    fields = [x, rows, weights, panel, start, pitch, so_far, length]
                    few = b.icmp_signed("<=", height, i64(ROWS))
                    with b.if_else(few) as (then, otherwise):
                        with then:
                            b.call(narrow, fields)
                        with otherwise:
                            b.call(wide, fields)
        b.ret_void()
        return function

    def _empty_config(self, b: Any) -> Any:
        """All but the rows of the registers."""
        with b.goto_entry_block():
            config = b.alloca(I64, CONFIG_WORDS)
            config.align = 64
        words = {0: 1} | dict.fromkeys(CONFIG_BYTES, sum(ROW_BYTES << 16 * n for n in range(4)))
        for place in range(CONFIG_WORDS):
            b.store(i64(words.get(place, 0)), at(b, config, i64(place), I64))
        return config

    def _configure_for(self, b: Any, config: Any, rows: Any) -> None:
        """Registers for so many rows: those of the first 16, and those of the rest."""
        low = minimum(b, rows, i64(ROWS))
        rest = b.sub(rows, low)
        wide = b.icmp_signed(">", rest, i64(0))
        heights = {register: low for register in (*SUMS[:2], LOW)}
        heights |= {register: b.select(wide, rest, low) for register in SUMS[2:]}
        heights |= {register: i64(ROWS) for register in WEIGHTS}
        heights[HIGH] = b.select(wide, rest, i64(ROWS))
        word = i64(0)
        for register, height in heights.items():
            word = b.or_(word, b.shl(height, i64(8 * register)))
        b.store(word, at(b, config, i64(CONFIG_ROWS), I64))
        b.call(self._configure, [config])

    def _emit_pack(self) -> Any:
        """pack(x, packed, rows, pitch, steps): [steps / 16][rows][16] words of rows `pitch` apart."""
        function, b = self._emitter.define("tiles_pack", [PTR, PTR, I64, I64, I64])
        x, packed, rows, pitch, steps = function.args
        words = ir.VectorType(I32, STEPS)
        with loop(b, i64(0), rows) as row, loop(b, i64(0), steps, i64(STEPS)) as step:
            word = b.load(at(b, x, b.add(b.mul(row, pitch), step), I32), align=4, typ=words)
            target = b.add(b.mul(step, rows), b.mul(row, i64(STEPS)))
            b.store(word, at(b, packed, target, I32), align=64)
        b.ret_void()
        return function

    def _define_tile(self, name: str) -> tuple[Any, Any]:
        """name(x, rows, weights, panel, start, pitch, sums, steps): a strip by a block of rows.

        `x` is packed for `rows` rows, of which the block is a part; `weights` are the strip's, in
        panels `panel` words apart. The sums [rows][strip] go on from `start`, whose rows are
        `pitch` bytes apart: the bias, with a pitch of 0, or what the part before left.
        """
        return self._emitter.define(name, [PTR, I64, PTR, I64, PTR, I64, PTR, I64])

    def _emit_narrow(self) -> Any:
        """A tile for up to 16 rows: all outputs of the strip at a time."""
        function, b = self._define_tile("tiles_narrow")
        x, rows, weights, panel, start, pitch, sums, steps = function.args
        outputs = range(STRIP_VECTORS)
        self._move(b, self._load, start, pitch, SUMS, [(0, v) for v in outputs])
        with loop(b, i64(0), steps, i64(STEPS)) as step:
            self._read(b, LOW, at(b, x, b.mul(step, rows), I32))
            for v in outputs:
                register = WEIGHTS[v % len(WEIGHTS)]
                self._read(b, register, self._weights(b, weights, panel, v, step))
                b.call(self._multiply, [I8(SUMS[v]), I8(LOW), I8(register)])
        pitch = i64(4 * self._emitter.unit.strip)
        self._move(b, self._store, sums, pitch, SUMS, [(0, v) for v in outputs])
        b.ret_void()
        return function

    def _emit_wide(self) -> Any:
        """A tile for 17 to 32 rows: two vectors of outputs after the other two."""
        function, b = self._define_tile("tiles_wide")
        x, rows, weights, panel, start, pitch, sums, steps = function.args
        for pair in ((0, 1), (2, 3)):
            places = [(half, v) for half in (0, 1) for v in pair]
            self._move(b, self._load, start, pitch, SUMS, places)
            with loop(b, i64(0), steps, i64(STEPS)) as step:
                values = at(b, x, b.mul(step, rows), I32)
                self._read(b, LOW, values)
                self._read(b, HIGH, at(b, values, i64(TILE_WORDS), I32))
                for v, register in zip(pair, WEIGHTS_BESIDE_HIGH, strict=True):
                    self._read(b, register, self._weights(b, weights, panel, v, step))
                for register, (half, v) in zip(SUMS, places, strict=True):
                    operands = (register, (LOW, HIGH)[half], WEIGHTS_BESIDE_HIGH[v - pair[0]])
                    b.call(self._multiply, [I8(operand) for operand in operands])
            self._move(b, self._store, sums, i64(4 * self._emitter.unit.strip), SUMS, places)
        b.ret_void()
        return function

    def _read(self, b: Any, register: int, address: Any) -> None:
        b.call(self._load, [I8(register), address, i64(ROW_BYTES)])

    def _weights(self, b: Any, weights: Any, panel: Any, vector: int, step: Any) -> Any:
        place = b.add(b.mul(panel, i64(vector)), b.mul(step, i64(self._emitter.unit.lanes)))
        return at(b, weights, place, I32)

    def _move(
        self, b: Any, move: Any, matrix: Any, pitch: Any, registers: Sequence[int],
        places: Sequence[tuple[int, int]],
    ) -> None:  # fmt: skip
        """Registers from or to a matrix with rows `pitch` bytes apart, at (16 rows, vector)."""
        for register, (half, vector) in zip(registers, places, strict=True):
            offset = b.add(b.mul(i64(ROWS * half), pitch), i64(ROW_BYTES * vector))
            b.call(move, [I8(register), at(b, matrix, offset, I8), pitch])
