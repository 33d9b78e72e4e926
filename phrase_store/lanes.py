"""Operations on sixteen adjacent words, as vector instructions that numba does not generate itself.

numba unrolls a loop over 16 words into scalar steps; one vector operation takes a tenth of that
time. `words[start : start + LANES]` must lie within the array; this is not checked.
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
# Positive floats have the same order as their bit patterns; the last four bits hold the lane.
_RANK_BITS = 0xFFFFFFF0
_WORST = 0xFFFFFFFF


def _inline(generator: Callable[..., Any]) -> Callable[..., Any]:
    """A numba intrinsic. Compiled code calls it without the generator's typing context."""
    return cast(Callable[..., Any], intrinsic(generator))


def _address(context: Any, builder: Any, array_type: Any, array: Any, start: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [start])


def _load_sixteen(context: Any, builder: Any, array_type: Any, array: Any, start: Any) -> Any:
    address = _address(context, builder, array_type, array, start)
    return builder.load(builder.bitcast(address, _WORDS.as_pointer()), align=4)


def _splat(builder: Any, value: Any) -> Any:
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
        found = _load_sixteen(context, builder, signature.args[0], array, place)
        equal = builder.icmp_unsigned("==", found, _splat(builder, wanted))
        return builder.zext(builder.bitcast(equal, _MASK), _WORD)

    return types.uint32(words, types.intp, types.uint32), generate


@_inline
def least_lane(
    _typing: Any, words: Any, counts: Any, ticks: Any, now: Any, decay: Any, mask: Any
) -> Any:
    """least_lane(words, counts, ticks, now, decay, mask): the lane of the least decayed count.

    Considers only lanes in the mask. Lane i's decayed count is
    words[counts + i] / (1 + decay x (now - words[ticks + i])), to one part in a million. The lower
    lane wins a tie.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, counts_at, ticks_at, clock, rate, allowed = arguments
        kind = signature.args[0]
        count = builder.uitofp(_load_sixteen(context, builder, kind, array, counts_at), _FLOATS)
        tick = _load_sixteen(context, builder, kind, array, ticks_at)
        age = builder.uitofp(builder.sub(_splat(builder, clock), tick), _FLOATS)
        ones = ir.Constant(_FLOATS, [1.0] * LANES)
        fading = builder.fadd(ones, builder.fmul(_splat(builder, rate), age))
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
def lowest_bit(_typing: Any, mask: Any) -> Any:
    """lowest_bit(mask): the index of the lowest bit that is set; 32 if none is."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _call(builder, "llvm.cttz.i32", _WORD, [arguments[0], ir.IntType(1)(0)])

    return types.uint32(types.uint32), generate


@_inline
def count_bits(_typing: Any, mask: Any) -> Any:
    """count_bits(mask): the number of bits that are set."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _call(builder, "llvm.ctpop.i32", _WORD, [arguments[0]])

    return types.uint32(types.uint32), generate


@_inline
def prefetch(_typing: Any, words: Any, start: Any) -> Any:
    """prefetch(words, start): prefetches the cache line of words[start], without waiting."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        pointer = builder.bitcast(address, _BYTE.as_pointer())
        # Arguments: for writing, to be kept in all cache levels, data cache.
        _call(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, _WORD(1), _WORD(3), _WORD(1)])
        return context.get_dummy_value()

    return types.void(words, types.intp), generate
