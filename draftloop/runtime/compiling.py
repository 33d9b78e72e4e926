"""Loops in Python that numba compiles."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.extending import register_jitable

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiled at first use, kept on disk where a folder can be written, without the GIL.

    What is kept is renewed when its own file changes, not when a file does whose functions it
    calls: who changes one of these removes the `*.nbi` beside those that call it.
    """
    return _compiled(function)


def vectorised(function: Function) -> Function:
    """The same for loops over numbers that are never NaN: greatest and least of whole vectors.

    Nothing else is reordered or fused, so the results have the same bits wherever it is called.
    """
    return _compiled(function, fastmath={"nnan", "nsz"})


def compilable(function: Function) -> Function:
    """Stays what it is; compiled code that calls it has it compiled along."""
    return register_jitable(function)


def _compiled(function: Function, **more: Any) -> Function:
    options = {"nogil": True, "error_model": "numpy", **more}
    try:
        made = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder for its cache: a read-only container, say
        return cast(Function, numba.njit(**options)(function))
    save = made._cache.save_overload

    def save_if_there_is_room(*what: Any) -> None:
        with contextlib.suppress(OSError):  # a full disk: it is compiled anew next time
            save(*what)

    made._cache.save_overload = save_if_there_is_room
    return cast(Function, made)
