"""The compiled kernel of `cpu_stack`: LLVM IR, written with llvmlite, tokens to logits in one call.

Importing this module requires llvmlite; `cpu_stack` is the way in.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any

import torch
from llvmlite import ir

from draftloop.runtime import cpu_attention_kernel, cpu_linear_kernel
from draftloop.runtime.llvm import (
    F32,
    F64,
    I64,
    PTR,
    VOID,
    FormatEmitter,
    VectorUnit,
    at,
    compile_module,
    i64,
    know_function,
    lanes_for,
    loop,
)

CALL_FIELDS = (
    "layers", "count", "segments", "segment_count", "rows", "hidden", "heads", "kv_heads", "dim",
    "key_head", "slot_size", "threads", "token_ids", "positions", "embedding", "x", "normed",
    "joined", "query", "attended", "narrowed", "gates", "inner", "delta", "cosines", "sines",
    "last_norm", "chosen", "chosen_count", "head weights", "head bias", "head steps",
    "head outputs", "scores", "logits", "scale", "epsilon",
)  # fmt: skip
CALL = struct.Struct(f"{len(CALL_FIELDS) - 2}q2d")
CALL_POINTERS = (
    "layers", "segments", "token_ids", "positions", "embedding", "x", "normed", "joined", "query",
    "attended", "narrowed", "gates", "inner", "delta", "cosines", "sines", "last_norm", "chosen",
    "head weights", "head bias", "scores", "logits",
)  # fmt: skip
LINEAR_FIELDS = ("weights", "bias", "steps", "outputs")
LINEARS = ("before_attention", "after_attention", "before_activation", "after_activation")
LAYER_FIELDS = (
    "first_norm", "second_norm", "keys", "values", "window",
    *(f"{name} {field}" for name in LINEARS for field in LINEAR_FIELDS),
)  # fmt: skip
LAYER_POINTERS = tuple(
    name for name in LAYER_FIELDS if name.split()[-1] not in ("window", "steps", "outputs")
)
# `biases`: for every kind of window the address and the row's length.
SEGMENT_FIELDS = ("slot", "start", "rows", "stored_from", "stored_to", "biases")
SEGMENT_POINTERS = ("biases",)


class _StackEmitter(FormatEmitter):
    """Writes the module of one format; every width is a multiple of the unit's lanes.

    All matrices are dense, [rows][width]: `joined` holds a row's queries, keys and values, `gates`
    what goes into the activation and then what it is multiplied by.
    """

    entry = "stack"

    def __init__(
        self, unit: VectorUnit, dtype: torch.dtype, linear: str, attention: str, strip: int
    ) -> None:
        super().__init__(unit, dtype)
        self.strip = strip
        self.linear = self.declare(linear, VOID, [PTR])
        self.attention = self.declare(attention, VOID, [PTR])
        self.root = self.declare("llvm.sqrt.f32", F32, [F32])

    def emit_norm(self) -> Any:
        """norm(x, weight, out, rows, width, epsilon): root mean square, rounded, times weight."""
        function, b = self.define("norm", [PTR, PTR, PTR, I64, I64, F32])
        x, weight, out, rows, width, epsilon = function.args
        step = i64(self.unit.lanes)
        with b.goto_entry_block():
            squares = b.alloca(self.floats)
        with loop(b, i64(0), rows) as row:
            start = b.mul(row, width)
            b.store(self.constant(0.0), squares)
            with loop(b, i64(0), width, step) as column:
                value = self.load(b, x, b.add(start, column))
                known = b.load(squares, typ=self.floats)
                b.store(b.call(self.fma, [value, value, known]), squares)
            total = self.sum_of_lanes(b, b.load(squares, typ=self.floats))
            mean = b.fdiv(total, b.sitofp(width, F32))
            root = b.call(self.root, [b.fadd(mean, epsilon)])
            factor = self.splat(b, b.fdiv(ir.Constant(F32, 1.0), root), self.floats)
            with loop(b, i64(0), width, step) as column:
                place = b.add(start, column)
                scaled = self.nearest(b, b.fmul(self.load(b, x, place), factor))
                self.store(b, b.fmul(scaled, self.load(b, weight, column)), out, place)
        b.ret_void()
        return function

    def emit_add(self) -> Any:
        """add(x, delta, count): x += delta."""
        function, b = self.define("add", [PTR, PTR, I64])
        x, delta, count = function.args
        with loop(b, i64(0), count, i64(self.unit.lanes)) as place:
            total = b.fadd(self.load(b, x, place), self.load(b, delta, place))
            self.store(b, total, x, place)
        b.ret_void()
        return function

    def emit_narrow(self) -> Any:
        """narrow(values, out, count): float32 to the format."""
        function, b = self.define("narrow", [PTR, PTR, I64])
        values, out, count = function.args
        with loop(b, i64(0), count, i64(self.unit.lanes)) as place:
            value = b.load(at(b, values, place, F32), align=4, typ=self.floats)
            self.store(b, value, out, place)
        b.ret_void()
        return function

    def emit_gate(self) -> Any:
        """gate(gates, out, rows, width): SiLU of the first half of a row times the second."""
        function, b = self.define("gate", [PTR, PTR, I64, I64])
        gates, out, rows, width = function.args
        with loop(b, i64(0), rows) as row:
            first, target = b.mul(row, b.mul(width, i64(2))), b.mul(row, width)
            with loop(b, i64(0), width, i64(self.unit.lanes)) as column:
                place = b.add(first, column)
                gate, up = self.load(b, gates, place), self.load(b, gates, b.add(place, width))
                self.store(b, self.gated(b, gate, up), out, b.add(target, column))
        b.ret_void()
        return function

    def emit_turn(self) -> Any:
        """turn(source, cosines, sines, out, dim): RoPE on one head of one row, to float32."""
        function, b = self.define("turn", [PTR, PTR, PTR, PTR, I64])
        source, cosines, sines, out, dim = function.args
        half = b.sdiv(dim, i64(2))
        with loop(b, i64(0), half, i64(self.unit.lanes)) as low_place:
            high_place = b.add(low_place, half)
            low, high = self.load(b, source, low_place), self.load(b, source, high_place)
            pairs = ((low_place, low, b.fneg(high)), (high_place, high, low))
            for place, value, other in pairs:
                straight = self.nearest(b, b.fmul(value, self.load(b, cosines, place)))
                across = self.nearest(b, b.fmul(other, self.load(b, sines, place)))
                turned = self.nearest(b, b.fadd(straight, across))
                b.store(turned, at(b, out, place, F32), align=4)
        b.ret_void()
        return function

    def emit_widen(self) -> Any:
        """widen(source, out, count): to float32."""
        function, b = self.define("widen", [PTR, PTR, I64])
        source, out, count = function.args
        with loop(b, i64(0), count, i64(self.unit.lanes)) as place:
            b.store(self.load(b, source, place), at(b, out, place, F32), align=4)
        b.ret_void()
        return function

    def emit_segment(self, widen: Any) -> Any:
        """segment(call, layer, segment): stores keys and values, turns queries, and attends."""
        turn = self.emit_turn()
        function, b = self.define("segment", [PTR, PTR, PTR])
        call, layer, segment = function.args
        known = self.record(b, call, CALL_FIELDS, CALL_POINTERS)
        of_layer = self.record(b, layer, LAYER_FIELDS, LAYER_POINTERS)
        mine = self.record(b, segment, SEGMENT_FIELDS, SEGMENT_POINTERS)
        dim, heads, kv_heads = known["dim"], known["heads"], known["kv_heads"]
        slot = b.mul(mine["slot"], known["slot_size"])
        keys, values = (at(b, of_layer[name], slot, F32) for name in ("keys", "values"))
        turned_heads = b.add(heads, kv_heads)
        width = b.mul(b.add(turned_heads, kv_heads), dim)
        with loop(b, i64(0), mine["rows"]) as number:
            row = b.add(mine["start"], number)
            stored = b.mul(b.add(mine["stored_from"], number), dim)
            source = at(b, known["joined"], b.mul(row, width), self.scalar)
            position = b.load(at(b, known["positions"], row, I64), typ=I64)
            angle = b.mul(position, dim)
            angles = [at(b, known[name], angle, self.scalar) for name in ("cosines", "sines")]
            query = at(b, known["query"], b.mul(row, b.mul(heads, dim)), F32)
            with loop(b, i64(0), heads) as head:
                place = b.mul(head, dim)
                head_source = at(b, source, place, self.scalar)
                b.call(turn, [head_source, *angles, at(b, query, place, F32), dim])
            with loop(b, i64(0), kv_heads) as head:
                target = b.add(b.mul(head, known["key_head"]), stored)
                head_source = at(b, source, b.mul(b.add(heads, head), dim), self.scalar)
                b.call(turn, [head_source, *angles, at(b, keys, target, F32), dim])
                head_source = at(b, source, b.mul(b.add(turned_heads, head), dim), self.scalar)
                b.call(widen, [head_source, at(b, values, target, F32), dim])
        self.emit_attention_call(b, known, of_layer, mine, keys, values)
        b.ret_void()
        return function

    def emit_attention_call(
        self, b: Any, known: dict[str, Any], layer: dict[str, Any], segment: dict[str, Any],
        keys: Any, values: Any,
    ) -> None:  # fmt: skip
        """Fills the record of `cpu_attention_kernel` and calls it."""
        heads, dim = known["heads"], known["dim"]
        row_size = b.mul(heads, dim)
        first = b.mul(segment["start"], row_size)
        bias = b.mul(layer["window"], i64(2))
        address, stride = (
            b.load(at(b, segment["biases"], b.add(bias, i64(n)), I64), typ=I64) for n in (0, 1)
        )
        fields = {
            "query": b.ptrtoint(at(b, known["query"], first, F32), I64),
            "keys": b.ptrtoint(keys, I64),
            "values": b.ptrtoint(values, I64),
            "bias": address,
            "out": b.ptrtoint(at(b, known["attended"], first, F32), I64),
            "rows": segment["rows"],
            "stored": segment["stored_to"],
            "stride": stride,
            "heads": heads,
            "group": b.sdiv(heads, known["kv_heads"]),
            "query_head": dim,
            "query_row": row_size,
            "key_head": known["key_head"],
            "scale": known["scale"],
            "threads": known["threads"],
        }
        self.call_kernel(b, self.attention, cpu_attention_kernel.CALL_FIELDS, fields)

    def call_kernel(
        self, b: Any, function: Any, names: tuple[str, ...], fields: dict[str, Any]
    ) -> None:
        """Calls another kernel with a record of 64-bit fields."""
        with b.goto_entry_block():
            record = b.alloca(I64, len(names))
        for place, name in enumerate(names):
            b.store(fields[name], at(b, record, i64(place), I64))
        b.call(function, [record])

    def emit_linear_call(
        self, b: Any, known: dict[str, Any], layer: dict[str, Any], name: str, x: str, out: str,
        gated: Any = None, rows: Any = None,
    ) -> None:  # fmt: skip
        """out = x times one of the layer's matrices; `gated` as in `cpu_linear_kernel`."""
        fields = {field: layer[f"{name} {field}"] for field in ("steps", "outputs")}
        for field in ("weights", "bias"):
            fields[field] = b.ptrtoint(layer[f"{name} {field}"], I64)
        fields["x"], fields["out"] = (b.ptrtoint(known[matrix], I64) for matrix in (x, out))
        fields |= {"rows": rows or known["rows"], "threads": known["threads"]}
        fields["gated"] = gated or i64(0)
        self.call_kernel(b, self.linear, cpu_linear_kernel.CALL_FIELDS, fields)

    def emit_layer(self, functions: dict[str, Any]) -> Any:
        """layer(call, layer, epsilon): x += attention of x; x += feed-forward of x."""
        function, b = self.define("layer", [PTR, PTR, F32])
        call, layer, epsilon = function.args
        known = self.record(b, call, CALL_FIELDS, CALL_POINTERS)
        mine = self.record(b, layer, LAYER_FIELDS, LAYER_POINTERS)
        rows, hidden = known["rows"], known["hidden"]
        x, normed, delta = (known[name] for name in ("x", "normed", "delta"))
        size = b.mul(rows, hidden)
        attended = b.mul(rows, b.mul(known["heads"], known["dim"]))
        inner = b.sdiv(mine["before_activation outputs"], i64(2))
        # Where the halves begin with a strip the kernel of the matrix goes on to the activation.
        begins = b.icmp_signed("==", b.srem(inner, i64(self.strip)), i64(0))
        gated = b.select(begins, b.ptrtoint(known["inner"], I64), i64(0))
        b.call(functions["norm"], [x, mine["first_norm"], normed, rows, hidden, epsilon])
        self.emit_linear_call(b, known, mine, "before_attention", "normed", "joined")
        with loop(b, i64(0), known["segment_count"]) as number:
            place = b.mul(number, i64(len(SEGMENT_FIELDS)))
            segment = at(b, known["segments"], place, I64)
            b.call(functions["segment"], [call, layer, segment])
        b.call(functions["narrow"], [known["attended"], known["narrowed"], attended])
        self.emit_linear_call(b, known, mine, "after_attention", "narrowed", "delta")
        b.call(functions["add"], [x, delta, size])
        b.call(functions["norm"], [x, mine["second_norm"], normed, rows, hidden, epsilon])
        self.emit_linear_call(b, known, mine, "before_activation", "normed", "gates", gated)
        with b.if_then(b.not_(begins)):
            b.call(functions["gate"], [known["gates"], known["inner"], rows, inner])
        self.emit_linear_call(b, known, mine, "after_activation", "inner", "delta")
        b.call(functions["add"], [x, delta, size])
        b.ret_void()
        return function

    def emit_embed(self) -> Any:
        """embed(token_ids, embedding, x, rows, hidden): x[row] = embedding[token_ids[row]]."""
        function, b = self.define("embed", [PTR, PTR, PTR, I64, I64])
        token_ids, embedding, x, rows, hidden = function.args
        with loop(b, i64(0), rows) as row:
            token = b.load(at(b, token_ids, row, I64), typ=I64)
            source, target = b.mul(token, hidden), b.mul(row, hidden)
            with loop(b, i64(0), hidden, i64(self.unit.lanes)) as column:
                value = self.load(b, embedding, b.add(source, column))
                self.store(b, value, x, b.add(target, column))
        b.ret_void()
        return function

    def emit_head(self, norm: Any, widen: Any) -> Any:
        """head(call, epsilon): the logits of the rows that `chosen` names, in float32."""
        function, b = self.define("head", [PTR, F32])
        call, epsilon = function.args
        known = self.record(b, call, CALL_FIELDS, CALL_POINTERS)
        hidden, count = known["hidden"], known["chosen_count"]
        with loop(b, i64(0), count) as number:
            row = b.load(at(b, known["chosen"], number, I64), typ=I64)
            source = at(b, known["x"], b.mul(row, hidden), self.scalar)
            target = at(b, known["normed"], b.mul(number, hidden), self.scalar)
            b.call(norm, [source, known["last_norm"], target, i64(1), hidden, epsilon])
        out = "scores" if self.narrow else "logits"
        self.emit_linear_call(b, known, known, "head", "normed", out, rows=count)
        if self.narrow:
            values = b.mul(count, known["head outputs"])
            b.call(widen, [known["scores"], known["logits"], values])
        b.ret_void()
        return function

    def emit_stack(self) -> str:
        """stack(call), the entry; returns the text of the module."""
        widen = self.emit_widen()
        functions = {
            "norm": self.emit_norm(), "add": self.emit_add(), "narrow": self.emit_narrow(),
            "gate": self.emit_gate(), "segment": self.emit_segment(widen),
        }  # fmt: skip
        embed, layer_of = self.emit_embed(), self.emit_layer(functions)
        head = self.emit_head(functions["norm"], widen)
        function, b = self.define(self.entry, [PTR])
        (call,) = function.args
        known = self.record(b, call, CALL_FIELDS, CALL_POINTERS)
        epsilon = b.fptrunc(b.bitcast(known["epsilon"], F64), F32)
        names = ("token_ids", "embedding", "x", "rows", "hidden")
        b.call(embed, [known[name] for name in names])
        with loop(b, i64(0), known["count"]) as number:
            layer = at(b, known["layers"], b.mul(number, i64(len(LAYER_FIELDS))), I64)
            b.call(layer_of, [call, layer, epsilon])
        b.call(head, [call, epsilon])
        b.ret_void()
        return str(self.module)


@functools.cache
def compiled(
    unit: VectorUnit, dtype: torch.dtype, dim: int, widths: tuple[int, ...]
) -> Callable[[bytes], None]:
    """The kernel for heads of `dim` dimensions: a function of one packed `CALL`.

    `widths` are those of all matrices, and half of a head: vectors have lanes that divide them.
    """
    linear, attention = f"draftloop_linear_{dtype.itemsize}", f"draftloop_attention_{dim}"
    know_function(linear, cpu_linear_kernel.compiled(unit, dtype))
    know_function(attention, cpu_attention_kernel.compiled(unit, dim))
    narrower = VectorUnit(lanes=lanes_for(unit, *widths), registers=unit.registers)
    emitter = _StackEmitter(narrower, dtype, linear, attention, unit.strip)
    return compile_module(emitter.emit_stack(), _StackEmitter.entry)
