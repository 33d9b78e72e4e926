"""The compiled kernel of `cpu_choice`: LLVM IR, built with llvmlite.

Importing this module requires llvmlite; used through `cpu_choice`.
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
    F64,
    I64,
    PTR,
    Emitter,
    at,
    compile_module,
    i64,
    loop,
)
from draftloop.runtime.team import Team
from draftloop.runtime.vector_unit import VectorUnit

MIN_VALUES_PER_THREAD = 1 << 18  # for less, waking a thread costs more than it saves

# What is computed for rows. RANKED: the greatest logits, without temperature and noise. CHOSEN: the
# best tokens by scores with them. WEIGHED: also the sum of exp(score - best) over a row.
RANKED, CHOSEN, WEIGHED = range(3)
# `results`: float64 [rows, 2 x count + 1]: the tokens, their scores, and with WEIGHED the sum of
# exp(score - best).
CALL_FIELDS = (
    "logits", "scores", "results", "rows", "stride", "vocabulary", "width", "count", "mode",
    "temperature", "threads",
)  # fmt: skip
CALL = struct.Struct("9qd1q")  # the address of every row's noise follows
POINTERS = ("logits", "scores", "results")


class _ChoiceEmitter(Emitter):
    """Emits the module. Rows of scores are `width` floats, a multiple of the lanes."""

    entry = "choose"

    def __init__(self, unit: VectorUnit) -> None:
        super().__init__(unit)
        self.team = Team(self)

    def emit_highest(self) -> Any:
        """highest(logits, vocabulary, out): the greatest of a row."""
        function, b = self.define("highest", [PTR, I64, PTR])
        logits, vocabulary, out = function.args
        with b.goto_entry_block():
            most = b.alloca(self.floats)
        b.store(self.constant(-math.inf), most)
        whole = self.whole_of(b, vocabulary)
        with loop(b, i64(0), whole, i64(self.unit.lanes)) as j:
            value, known = self.vector(b, logits, j), b.load(most, typ=self.floats)
            b.store(b.select(b.fcmp_ordered(">", value, known), value, known), most)
        highest = self.max_of_lanes(b, b.load(most, typ=self.floats))
        b.store(b.extract_element(highest, i64(0)), out)
        with loop(b, whole, vocabulary) as j:
            value, first = b.load(at(b, logits, j, F32), typ=F32), b.load(out, typ=F32)
            b.store(b.select(b.fcmp_ordered(">", value, first), value, first), out)
        b.ret_void()
        return function

    def emit_scores(self) -> Any:
        """scores(logits, noise, scores, vocabulary, width, shift, temperature): of one row.

        (logit - shift) / temperature + noise; -inf beyond the vocabulary.
        """
        function, b = self.define("scores", [PTR, PTR, PTR, I64, I64, F32, F32])
        logits, noise, scores, vocabulary, width, shift, temperature = function.args
        shifts, temperatures = (self.splat(b, s, self.floats) for s in (shift, temperature))
        whole = self.whole_of(b, vocabulary)
        with loop(b, i64(0), whole, i64(self.unit.lanes)) as j:
            shaped = b.fdiv(b.fsub(self.vector(b, logits, j), shifts), temperatures)
            score = b.fadd(shaped, self.vector(b, noise, j))
            b.store(score, at(b, scores, j, F32), align=4)
        with loop(b, whole, vocabulary) as j:
            logit, drawn = (b.load(at(b, base, j, F32), typ=F32) for base in (logits, noise))
            shaped = b.fdiv(b.fsub(logit, shift), temperature)
            b.store(b.fadd(shaped, drawn), at(b, scores, j, F32))
        with loop(b, vocabulary, width) as j:
            b.store(ir.Constant(F32, -math.inf), at(b, scores, j, F32))
        b.ret_void()
        return function

    def emit_insert(self) -> Any:
        """insert(score, token, told, count): replaces the last one and moves up to its place.

        Of equal scores, the earlier one stays first.
        """
        function, b = self.define("insert", [F64, F64, PTR, I64])
        score, token, tokens, count = function.args
        bests, last = at(b, tokens, count, F64), b.sub(count, i64(1))
        b.store(score, at(b, bests, last, F64))
        b.store(token, at(b, tokens, last, F64))
        with loop(b, i64(0), last) as step:
            places = [b.sub(last, b.add(step, i64(1))), b.sub(last, step)]
            first, second = (b.load(at(b, bests, place, F64), typ=F64) for place in places)
            swap = b.fcmp_ordered(">", second, first)
            for base in (bests, tokens):
                here, there = (at(b, base, place, F64) for place in places)
                left, right = (b.load(address, typ=F64) for address in (here, there))
                b.store(b.select(swap, right, left), here)
                b.store(b.select(swap, left, right), there)
        b.ret_void()
        return function

    def emit_top(self) -> Any:
        """top(scores, told, size, count): the `count` best of a row, best first."""
        insert = self.emit_insert()
        function, b = self.define("top", [PTR, PTR, I64, I64])
        scores, results, size, count = function.args
        bests = at(b, results, count, F64)
        with loop(b, i64(0), count) as place:
            b.store(ir.Constant(F64, 0.0), at(b, results, place, F64))
            b.store(ir.Constant(F64, -math.inf), at(b, bests, place, F64))
        last = at(b, bests, b.sub(count, i64(1)), F64)

        def consider(token: Any) -> None:
            score = b.fpext(b.load(at(b, scores, token, F32), typ=F32), F64)
            with b.if_then(b.fcmp_ordered(">", score, b.load(last, typ=F64))):
                b.call(insert, [score, b.sitofp(token, F64), results, count])

        whole = self.whole_of(b, size)
        with loop(b, i64(0), whole, i64(self.unit.lanes)) as j:
            least = self.splat(b, b.fptrunc(b.load(last, typ=F64), F32), self.floats)
            better = b.fcmp_ordered(">", self.vector(b, scores, j), least)
            bits = b.bitcast(better, ir.IntType(self.unit.lanes))
            with (
                b.if_then(b.icmp_unsigned("!=", bits, bits.type(0))),
                loop(b, j, b.add(j, i64(self.unit.lanes))) as token,
            ):
                consider(token)
        with loop(b, whole, size) as token:
            consider(token)
        b.ret_void()
        return function

    def emit_mass(self) -> Any:
        """mass(scores, best, width, out): the sum of exp(score - best) over a row."""
        function, b = self.define("mass", [PTR, F64, I64, PTR])
        scores, best, width, out = function.args
        with b.goto_entry_block():
            total = b.alloca(self.floats)
        b.store(self.constant(0.0), total)
        bests = self.splat(b, b.fptrunc(best, F32), self.floats)
        with loop(b, i64(0), width, i64(self.unit.lanes)) as j:
            weight = self.exponential(b, b.fsub(self.vector(b, scores, j), bests))
            b.store(b.fadd(b.load(total, typ=self.floats), weight), total)
        b.store(b.fpext(self.sum_of_lanes(b, b.load(total, typ=self.floats)), F64), out)
        b.ret_void()
        return function

    def emit_share(self) -> Any:
        """share(call): one thread's rows."""
        highest, scores_of = self.emit_highest(), self.emit_scores()
        top, mass = self.emit_top(), self.emit_mass()
        function, b = self.define("share", [PTR])
        (call,) = function.args
        known = self.record(b, call, CALL_FIELDS, POINTERS)
        vocabulary, width = known["vocabulary"], known["width"]
        count, mode = known["count"], known["mode"]
        temperature = b.fptrunc(b.bitcast(known["temperature"], F64), F32)
        with b.goto_entry_block():
            most = b.alloca(F32)
        twice = b.mul(count, i64(2))
        start, stop = self.team.own_part(b, known["rows"])
        with loop(b, start, stop) as row:
            logits = at(b, known["logits"], b.mul(row, known["stride"]), F32)
            noise = b.load(at(b, call, b.add(i64(len(CALL_FIELDS)), row), PTR), typ=PTR)
            scores = at(b, known["scores"], b.mul(row, width), F32)
            results = at(b, known["results"], b.mul(row, b.add(twice, i64(1))), F64)
            with b.if_else(b.icmp_signed("==", mode, i64(RANKED))) as (as_it_is, under_noise):
                with as_it_is:
                    b.call(top, [logits, results, vocabulary, count])
                with under_noise:
                    b.call(highest, [logits, vocabulary, most])
                    # At temperature 1 scores are the logits to the bit: nothing can overflow.
                    plain = b.fcmp_ordered("==", temperature, ir.Constant(F32, 1.0))
                    shift = b.select(plain, ir.Constant(F32, 0.0), b.load(most, typ=F32))
                    shaped = [vocabulary, width, shift, temperature]
                    b.call(scores_of, [logits, noise, scores, *shaped])
                    b.call(top, [scores, results, width, count])
            with b.if_then(b.icmp_signed("==", mode, i64(WEIGHED))):
                best = b.load(at(b, results, count, F64), typ=F64)
                b.call(mass, [scores, best, width, at(b, results, twice, F64)])
        b.ret_void()
        return function

    def emit_choose(self) -> str:
        """choose(call), the entry; returns the text of the module."""
        share = self.emit_share()
        function, b = self.define(self.entry, [PTR])
        (call,) = function.args
        known = self.record(b, call, CALL_FIELDS, POINTERS)
        self.team.run_rows(b, share, call, known, MIN_VALUES_PER_THREAD)
        b.ret_void()
        return str(self.module)

    def vector(self, b: Any, base: Any, index: Any) -> Any:
        """The vector of float32 values at number `index`."""
        return b.load(at(b, base, index, F32), align=4, typ=self.floats)

    def whole_of(self, b: Any, count: Any) -> Any:
        """The part of `count` that is full vectors."""
        lanes = i64(self.unit.lanes)
        return b.mul(b.sdiv(count, lanes), lanes)


@functools.cache
def compiled(unit: VectorUnit) -> Callable[[bytes], None]:
    """The kernel: a function of one packed `CALL`."""
    return compile_module(_ChoiceEmitter(unit).emit_choose(), _ChoiceEmitter.entry)
