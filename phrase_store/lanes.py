"""Sixteen neighbouring words at once: vector instructions that numba does not make by itself.

A loop over 16 words is unrolled into as many scalar steps; the same as one vector operation takes
a tenth of the time. `words[start : start + LANES]` must lie within the array: nobody checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16

_WORD, _FLOAT, _BYTE = ir.IntType(32), ir.FloatType(), ir.IntType(8)
_WORDS, _FLOATS = ir.VectorType(_WORD, LANES), ir.VectorType(_FLOAT, LANES)
_MASK = ir.IntType(LANES)
_FLAGS = ir.VectorType(ir.IntType(1), LANES)
# Positive floats are ordered as their bits are; the last four make room for a lane's number.
_RANK_BITS = 0xFFFFFFF0
_WORST = 0xFFFFFFFF


def _inline(generator: Callable[..., Any]) -> Callable[..., Any]:
    """What compiled code may call in the generator's place, without the context of its typing."""
    return cast(Callable[..., Any], intrinsic(generator))


def _address(context: Any, builder: Any, array_type: Any, array: Any, start: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [start])


def _sixteen(context: Any, builder: Any, array_type: Any, array: Any, start: Any) -> Any:
    address = _address(context, builder, array_type, array, start)
    return builder.load(builder.bitcast(address, _WORDS.as_pointer()), align=4)


def _everywhere(builder: Any, value: Any) -> Any:
    vector = ir.VectorType(value.type, LANES)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _WORD(0))
    zeros = ir.Constant(_WORDS, [0] * LANES)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)


def _call(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


@_inline
def equal_lanes(_typing: Any, words: Any, start: Any, value: Any) -> Any:
    """equal_lanes(words, start, value): a mask whose bit i says that words[start + i] == value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place, wanted = arguments
        found = _sixteen(context, builder, signature.args[0], array, place)
        equal = builder.icmp_unsigned("==", found, _everywhere(builder, wanted))
        return builder.zext(builder.bitcast(equal, _MASK), _WORD)

    return types.uint32(words, types.intp, types.uint32), generate


@_inline
def least_lane(
    _typing: Any, words: Any, counts: Any, ticks: Any, now: Any, decay: Any, mask: Any
) -> Any:
    """least_lane(words, counts, ticks, now, decay, mask): the lane of the least decayed count.

    Among those of the mask. Lane i has words[counts + i] / (1 + decay x (now - words[ticks + i])),
    to one part in a million; the lower lane wins a tie.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, counts_at, ticks_at, clock, rate, allowed = arguments
        kind = signature.args[0]
        count = builder.uitofp(_sixteen(context, builder, kind, array, counts_at), _FLOATS)
        tick = _sixteen(context, builder, kind, array, ticks_at)
        age = builder.uitofp(builder.sub(_everywhere(builder, clock), tick), _FLOATS)
        ones = ir.Constant(_FLOATS, [1.0] * LANES)
        fading = builder.fadd(ones, builder.fmul(_everywhere(builder, rate), age))
        bits = builder.bitcast(builder.fdiv(count, fading), _WORDS)
        rank = builder.and_(bits, ir.Constant(_WORDS, [_RANK_BITS] * LANES))
        rank = builder.or_(rank, ir.Constant(_WORDS, list(range(LANES))))
        flags = builder.bitcast(builder.trunc(allowed, _MASK), _FLAGS)
        rank = builder.select(flags, rank, ir.Constant(_WORDS, [_WORST] * LANES))
        least = _call(builder, "llvm.vector.reduce.umin.v16i32", _WORD, [rank])
        return builder.and_(least, _WORD(LANES - 1))

    argument_types = (words, types.intp, types.intp, types.uint32, types.float32, types.uint32)
    return types.uint32(*argument_types), generate


@_inline
def lowest(_typing: Any, mask: Any) -> Any:
    """lowest(mask): the number of its lowest bit that is set; 32 for none."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _call(builder, "llvm.cttz.i32", _WORD, [arguments[0], ir.IntType(1)(0)])

    return types.uint32(types.uint32), generate


@_inline
def how_many(_typing: Any, mask: Any) -> Any:
    """how_many(mask): how many of its bits are set."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _call(builder, "llvm.ctpop.i32", _WORD, [arguments[0]])

    return types.uint32(types.uint32), generate


@_inline
def fetch(_typing: Any, words: Any, start: Any) -> Any:
    """fetch(words, start): begins to bring the cache line of words[start]; waits for nothing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        pointer = builder.bitcast(address, _BYTE.as_pointer())
        # To be written, to stay in all caches, data.
        _call(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, _WORD(1), _WORD(3), _WORD(1)])
        return context.get_dummy_value()

    return types.void(words, types.intp), generate
