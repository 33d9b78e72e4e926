"""For loops compiled by numba: calling another compiled function, and reading the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from draftloop.runtime.compiling import compiled

_MONOTONIC = 1  # the clock of time.perf_counter
_clock_gettime: Any = types.ExternalFunction(
    "clock_gettime", cast(Any, types.int32)(types.int32, types.intp)
)


def _call(_typing: Any, function: Any, record: Any) -> Any:
    """call(function, record): calls a kernel by address with its record's address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        kernel = ir.FunctionType(ir.VoidType(), [pointer]).as_pointer()
        address, record_address = arguments
        builder.call(builder.inttoptr(address, kernel), [builder.inttoptr(record_address, pointer)])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


call: Callable[[int, int], None] = cast(Any, intrinsic(_call))


@compiled
def nanoseconds() -> int:
    """`time.perf_counter_ns` for compiled code."""
    time = np.empty(2, np.int64)
    _clock_gettime(_MONOTONIC, time.ctypes.data)
    return int(time[0] * 1_000_000_000 + time[1])
