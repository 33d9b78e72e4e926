"""Loops in Python that numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiled at first use, kept on disk where a folder can be written, without the GIL.

    What is kept is renewed when its own file changes, not when a file does whose functions it
    calls: who changes one of these removes the `*.nbi` beside those that call it.
    """
    try:
        return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    except RuntimeError:  # numba found no folder for its cache: a read-only container, say
        return cast(Function, numba.njit(nogil=True, error_model="numpy")(function))
