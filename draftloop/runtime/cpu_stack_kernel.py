"""The compiled kernel of `cpu_stack`: LLVM IR, built with llvmlite, tokens to logits in one call.

Importing this module requires llvmlite; used through `cpu_stack`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any

import torch

from draftloop.runtime import cpu_attention_kernel, cpu_linear_kernel
from draftloop.runtime.cpu_rows_kernel import RowsEmitter
from draftloop.runtime.llvm import (
    F32,
    F64,
    I64,
    PTR,
    VOID,
    at,
    ceil,
    compile_module,
    i64,
    loop,
    minimum,
    register_function,
)
from draftloop.runtime.quantization import Format
from draftloop.runtime.team import Team
from draftloop.runtime.vector_unit import VectorUnit, lanes_for

CALL_FIELDS = (
    "layers", "count", "segments", "segment_count", "rows", "hidden", "heads", "kv_heads", "dim",
    "key_head", "slot_size", "threads", "work_per_row", "token_ids", "positions", "embedding", "x",
    "normed", "joined", "query", "attended", "narrowed", "gates", "inner", "delta", "cosines",
    "sines", "last_norm", "chosen", "chosen_count", "head weights", "head bias", "head scales",
    "head bits", "head steps", "head outputs", "scores", "logits", "scale", "epsilon",
)  # fmt: skip
CALL = struct.Struct(f"{len(CALL_FIELDS) - 2}q2d")
MEMBER_FIELDS = (*CALL_FIELDS, "team")  # the copy that all threads of a team read
MEMBER_POINTERS = (
    "team", "layers", "segments", "token_ids", "positions", "embedding", "x", "normed", "joined",
    "query", "attended", "narrowed", "gates", "inner", "delta", "cosines", "sines", "last_norm",
    "chosen", "head weights", "head bias", "head scales", "scores", "logits",
)  # fmt: skip
MIN_WORK_PER_THREAD = 1 << 23  # multiply-adds; for less, waking a thread costs more than it saves
LINEAR_FIELDS = ("weights", "bias", "scales", "bits", "steps", "outputs")
LINEARS = ("before_attention", "after_attention", "before_activation", "after_activation")
LAYER_FIELDS = (
    "first_norm", "second_norm", "query_norm", "key_norm", "keys", "values", "window",
    *(f"{name} {field}" for name in LINEARS for field in LINEAR_FIELDS),
)  # fmt: skip
LAYER_POINTERS = tuple(
    name for name in LAYER_FIELDS if name.split()[-1] not in ("window", "bits", "steps", "outputs")
)
# `biases`: table with the bias's address and row length for every window size.
SEGMENT_FIELDS = ("slot", "start", "rows", "stored_from", "stored_to", "biases")
SEGMENT_POINTERS = ("biases",)


class _StackEmitter(RowsEmitter):
    """Emits the module for one format; every width is a multiple of the unit's lanes.

    All buffers are dense, [rows][width]: `joined` holds a row's queries, keys and values, `gates`
    the inputs of the activation and then its factors. One team of threads runs all layers: rows,
    heads or strips of outputs are split among them, with barriers where one needs what another has
    computed.
    """

    entry = "stack"

    def __init__(
        self, unit: VectorUnit, dtype: torch.dtype, linear: str, attention: str, strip: int
    ) -> None:
        super().__init__(unit, dtype)
        self.strip = strip
        self.team = Team(self)
        self.linear = self.declare(linear, VOID, [PTR, PTR])
        self.attention = self.declare(attention, VOID, [PTR])

    def emit_place(self, norm: Any) -> Any:
        """place(call, layer, segment): stores keys and values, and rotates queries and keys.

        For this thread's rows of a segment. A layer's head norms, if any, are applied first.
        """
        turn, turn_wide = self.emit_rope(widened=False), self.emit_rope(widened=True)
        copy = self.emit_copy(widened=False)
        function, b = self.define("place", [PTR, PTR, PTR])
        call, layer, segment = function.args
        known, of_layer, of_segment = self.records_of(b, call, layer, segment)
        dim, heads, kv_heads = known["dim"], known["heads"], known["kv_heads"]
        keys, values = self.cache_of(b, known, of_layer, of_segment)
        turned_heads = b.add(heads, kv_heads)
        width = b.mul(b.add(turned_heads, kv_heads), dim)
        own_first, own_stop = self.team.own_part(b, of_segment["rows"])
        with loop(b, own_first, own_stop) as number:
            row = b.add(of_segment["start"], number)
            stored = b.mul(b.add(of_segment["stored_from"], number), dim)
            source = at(b, known["joined"], b.mul(row, width), self.scalar)
            position = b.load(at(b, known["positions"], row, I64), typ=I64)
            angle = b.mul(position, dim)
            angles = [at(b, known[name], angle, self.scalar) for name in ("cosines", "sines")]
            query = at(b, known["query"], b.mul(row, b.mul(heads, dim)), F32)
            normed = b.icmp_signed("!=", b.ptrtoint(of_layer["query_norm"], I64), i64(0))
            with b.if_then(normed):
                first_key = at(b, source, b.mul(heads, dim), self.scalar)
                for weight, begin, count in (
                    (of_layer["query_norm"], source, heads),
                    (of_layer["key_norm"], first_key, kv_heads),
                ):
                    b.call(norm, [begin, weight, begin, count, dim, self.epsilon_of(b, known)])
            with loop(b, i64(0), heads) as head:
                place = b.mul(head, dim)
                head_source = at(b, source, place, self.scalar)
                b.call(turn_wide, [head_source, *angles, at(b, query, place, F32), dim])
            with loop(b, i64(0), kv_heads) as head:
                target = b.add(b.mul(head, known["key_head"]), stored)
                head_source = at(b, source, b.mul(b.add(heads, head), dim), self.scalar)
                b.call(turn, [head_source, *angles, at(b, keys, target, self.scalar), dim])
                head_source = at(b, source, b.mul(b.add(turned_heads, head), dim), self.scalar)
                b.call(copy, [head_source, at(b, values, target, self.scalar), dim])
        b.ret_void()
        return function

    def emit_attend(self) -> Any:
        """attend(call, layer, segment): attention of this thread's heads, rounded to the format."""
        narrow = self.emit_narrow()
        function, b = self.define("attend", [PTR, PTR, PTR])
        call, layer, segment = function.args
        known, of_layer, of_segment = self.records_of(b, call, layer, segment)
        self.emit_attention_call(b, known, of_layer, of_segment)
        first, stop = self.team.own_part(b, known["heads"])  # as the attention kernel splits them
        count = b.mul(b.sub(stop, first), known["dim"])
        width = b.mul(known["heads"], known["dim"])
        with loop(b, i64(0), of_segment["rows"]) as number:
            row = b.add(of_segment["start"], number)
            place = b.add(b.mul(row, width), b.mul(first, known["dim"]))
            source = at(b, known["attended"], place, F32)
            b.call(narrow, [source, at(b, known["narrowed"], place, self.scalar), count])
        b.ret_void()
        return function

    def records_of(
        self, b: Any, call: Any, layer: Any, segment: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The fields of the records of call, layer and segment."""
        return (
            self.record(b, call, MEMBER_FIELDS, MEMBER_POINTERS),
            self.record(b, layer, LAYER_FIELDS, LAYER_POINTERS),
            self.record(b, segment, SEGMENT_FIELDS, SEGMENT_POINTERS),
        )

    def cache_of(
        self, b: Any, known: dict[str, Any], layer: dict[str, Any], segment: dict[str, Any]
    ) -> tuple[Any, Any]:
        """The keys and the values of a segment's slot in a layer."""
        slot = b.mul(segment["slot"], known["slot_size"])
        return at(b, layer["keys"], slot, self.scalar), at(b, layer["values"], slot, self.scalar)

    def emit_attention_call(
        self, b: Any, known: dict[str, Any], layer: dict[str, Any], segment: dict[str, Any]
    ) -> None:
        """Fills the record of `cpu_attention_kernel` and calls its part."""
        keys, values = self.cache_of(b, known, layer, segment)
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
        record = self.filled(b, cpu_attention_kernel.CALL_FIELDS, fields)
        b.call(self.attention, [record])

    def epsilon_of(self, b: Any, known: dict[str, Any]) -> Any:
        """The norm's epsilon as float32."""
        return b.fptrunc(b.bitcast(known["epsilon"], F64), F32)

    def filled(self, b: Any, names: tuple[str, ...], fields: dict[str, Any]) -> Any:
        """A record of 64-bit fields for another kernel."""
        with b.goto_entry_block():
            record = b.alloca(I64, len(names))
        for place, name in enumerate(names):
            b.store(fields[name], at(b, record, i64(place), I64))
        return record

    def emit_linear_call(
        self, b: Any, known: dict[str, Any], layer: dict[str, Any], name: str, x: str, out: str,
        following: tuple[dict[str, Any], str, Any] | None = None, gated: Any = None,
        rows: Any = None,
    ) -> None:  # fmt: skip
        """out = x times one of the layer's matrices; `gated` as in `cpu_linear_kernel`.

        x must be complete for all threads; there is a barrier at the end. `following` is the matrix
        that is used next: its layer, its name and the number of parts of its outputs.
        """
        fields = {field: layer[f"{name} {field}"] for field in ("bits", "steps", "outputs")}
        for field in ("weights", "bias", "scales"):
            fields[field] = b.ptrtoint(layer[f"{name} {field}"], I64)
        fields["x"], fields["out"] = (b.ptrtoint(known[matrix], I64) for matrix in (x, out))
        fields |= {"rows": rows or known["rows"], "threads": known["threads"]}
        fields["gated"] = gated or i64(0)
        fields |= dict.fromkeys(("next", "next_steps", "next_strips"), i64(0))
        if following is not None:
            other, its_name, parts = following
            fields["next"] = b.ptrtoint(other[f"{its_name} weights"], I64)
            fields["next_steps"] = other[f"{its_name} steps"]
            outputs = b.sdiv(other[f"{its_name} outputs"], parts)
            fields["next_strips"] = ceil(b, outputs, i64(self.strip))
        record = self.filled(b, cpu_linear_kernel.CALL_FIELDS, fields)
        b.call(self.linear, [record, known["team"]])

    def emit_layer(self, functions: dict[str, Any]) -> Any:
        """layer(call, layer, epsilon): x += attention of x; x += feed-forward of x.

        The next record in memory is the next layer's, whose matrix is used next.
        """
        function, b = self.define("layer", [PTR, PTR, F32])
        call, layer, epsilon = function.args
        known = self.record(b, call, MEMBER_FIELDS, MEMBER_POINTERS)
        of_layer = self.record(b, layer, LAYER_FIELDS, LAYER_POINTERS)
        next_address = at(b, layer, i64(len(LAYER_FIELDS)), I64)
        next_layer = self.record(b, next_address, LAYER_FIELDS, LAYER_POINTERS)
        inner = b.sdiv(of_layer["before_activation outputs"], i64(2))
        # Where the halves begin with a strip the kernel of the matrix goes on to the activation.
        begins = b.icmp_signed("==", b.srem(inner, i64(self.strip)), i64(0))
        gated = b.select(begins, b.ptrtoint(known["inner"], I64), i64(0))
        parts = b.select(begins, i64(2), i64(1))
        following = {
            "before_attention": (of_layer, "after_attention", i64(1)),
            "after_attention": (of_layer, "before_activation", parts),
            "before_activation": (of_layer, "after_activation", i64(1)),
            "after_activation": (next_layer, "before_attention", i64(1)),
        }

        def multiply(name: str, x: str, out: str, gated: Any = None) -> None:
            self.emit_linear_call(b, known, of_layer, name, x, out, following[name], gated)

        first, stop = self.team.own_part(b, known["rows"])
        own = b.sub(stop, first)
        x, normed, delta = (
            at(b, known[name], b.mul(first, known["hidden"]), self.scalar)
            for name in ("x", "normed", "delta")
        )
        size = b.mul(own, known["hidden"])
        sizes = [own, known["hidden"], epsilon]
        b.call(functions["norm"], [x, of_layer["first_norm"], normed, *sizes])
        self.team.wait(b, known["team"])
        multiply("before_attention", "normed", "joined")
        for step in ("place", "attend"):
            with loop(b, i64(0), known["segment_count"]) as number:
                place = b.mul(number, i64(len(SEGMENT_FIELDS)))
                segment = at(b, known["segments"], place, I64)
                b.call(functions[step], [call, layer, segment])
            self.team.wait(b, known["team"])
        multiply("after_attention", "narrowed", "delta")
        b.call(functions["add"], [x, delta, size])
        b.call(functions["norm"], [x, of_layer["second_norm"], normed, *sizes])
        self.team.wait(b, known["team"])
        multiply("before_activation", "normed", "gates", gated)
        with b.if_then(b.not_(begins)):
            gates = at(b, known["gates"], b.mul(first, b.mul(inner, i64(2))), self.scalar)
            gated_rows = at(b, known["inner"], b.mul(first, inner), self.scalar)
            b.call(functions["gate"], [gates, gated_rows, own, inner])
            self.team.wait(b, known["team"])
        multiply("after_activation", "inner", "delta")
        b.call(functions["add"], [x, delta, size])
        b.ret_void()
        return function

    def emit_embed(self) -> Any:
        """embed(token_ids, embedding, x, rows, hidden): x[row] = embedding[token_ids[row]].

        For this thread's rows.
        """
        function, b = self.define("embed", [PTR, PTR, PTR, I64, I64])
        token_ids, embedding, x, rows, hidden = function.args
        first, stop = self.team.own_part(b, rows)
        with loop(b, first, stop) as row:
            token = b.load(at(b, token_ids, row, I64), typ=I64)
            source, target = b.mul(token, hidden), b.mul(row, hidden)
            with loop(b, i64(0), hidden, i64(self.unit.lanes)) as column:
                value = self.load(b, embedding, b.add(source, column))
                self.store(b, value, x, b.add(target, column))
        b.ret_void()
        return function

    def emit_head(self, norm: Any) -> Any:
        """head(call, epsilon): the logits of the rows that `chosen` names, in float32."""
        widen = self.emit_copy(widened=True)
        function, b = self.define("head", [PTR, F32])
        call, epsilon = function.args
        known = self.record(b, call, MEMBER_FIELDS, MEMBER_POINTERS)
        hidden, count, outputs = known["hidden"], known["chosen_count"], known["head outputs"]
        self.team.wait(b, known["team"])  # chosen rows may be another thread's
        first, stop = self.team.own_part(b, count)
        with loop(b, first, stop) as number:
            row = b.load(at(b, known["chosen"], number, I64), typ=I64)
            source = at(b, known["x"], b.mul(row, hidden), self.scalar)
            target = at(b, known["normed"], b.mul(number, hidden), self.scalar)
            b.call(norm, [source, known["last_norm"], target, i64(1), hidden, epsilon])
        self.team.wait(b, known["team"])
        out = "scores" if self.narrow else "logits"
        self.emit_linear_call(b, known, known, "head", "normed", out, rows=count)
        if self.narrow:
            place = b.mul(first, outputs)
            scores = at(b, known["scores"], place, self.scalar)
            values = b.mul(b.sub(stop, first), outputs)
            b.call(widen, [scores, at(b, known["logits"], place, F32), values])
        b.ret_void()
        return function

    def emit_member(self) -> Any:
        """member(call): what one thread of the team does, from tokens to logits."""
        norm = self.emit_norm()
        functions = {
            "norm": norm, "add": self.emit_add(), "gate": self.emit_gate(),
            "place": self.emit_place(norm), "attend": self.emit_attend(),
        }  # fmt: skip
        embed, layer_of = self.emit_embed(), self.emit_layer(functions)
        head = self.emit_head(norm)
        function, b = self.define("member", [PTR])
        (call,) = function.args
        known = self.record(b, call, MEMBER_FIELDS, MEMBER_POINTERS)
        epsilon = self.epsilon_of(b, known)
        names = ("token_ids", "embedding", "x", "rows", "hidden")
        b.call(embed, [known[name] for name in names])
        with loop(b, i64(0), known["count"]) as number:
            layer = at(b, known["layers"], b.mul(number, i64(len(LAYER_FIELDS))), I64)
            b.call(layer_of, [call, layer, epsilon])
        b.call(head, [call, epsilon])
        b.ret_void()
        return function

    def emit_stack(self) -> str:
        """stack(call), the entry; returns the text of the module."""
        member = self.emit_member()
        function, b = self.define(self.entry, [PTR])
        (call,) = function.args
        member_record = b.alloca(I64, len(MEMBER_FIELDS))
        with loop(b, i64(0), i64(len(CALL_FIELDS))) as place:
            b.store(b.load(at(b, call, place, I64), typ=I64), at(b, member_record, place, I64))
        team = b.ptrtoint(self.team.record(b), I64)
        b.store(team, at(b, member_record, i64(MEMBER_FIELDS.index("team")), I64))
        known = self.record(b, member_record, MEMBER_FIELDS, MEMBER_POINTERS)
        rows = b.add(known["rows"], i64(cpu_linear_kernel.WEIGHT_WORK))
        work = b.mul(rows, known["work_per_row"])
        threads = minimum(b, known["threads"], b.sdiv(work, i64(MIN_WORK_PER_THREAD)))
        self.team.run(b, member, member_record, threads)
        b.ret_void()
        return str(self.module)


@functools.cache
def compiled(
    unit: VectorUnit,
    dtype: torch.dtype,
    dim: int,
    widths: tuple[int, ...],
    form: Format | None = None,
) -> Callable[[bytes], None]:
    """The kernel for heads of `dim` dimensions: a function of one packed `CALL`.

    `widths` are those of all matrices, and half of a head: vectors have lanes that divide them.
    `form`: as `cpu_linear_kernel.compiled` says.
    """
    linear = "_".join(map(str, ("draftloop_linear", dtype.itemsize, *(form or ()))))
    attention = f"draftloop_attention_{dtype.itemsize}_{dim}"
    register_function(linear, cpu_linear_kernel.compiled(unit, dtype, form), "linear_part")
    register_function(attention, cpu_attention_kernel.compiled(unit, dtype, dim), "attention_part")
    narrower = VectorUnit(lanes=lanes_for(unit, *widths), registers=unit.registers)
    emitter = _StackEmitter(narrower, dtype, linear, attention, unit.strip)
    return compile_module(emitter.emit_stack(), _StackEmitter.entry)
