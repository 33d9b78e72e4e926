"""Decorators for Python loops that numba compiles."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.extending import register_jitable

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiles a function at first use; it runs without the GIL.

    The result is cached on disk if possible. It is recompiled when the function's file changes, the
    file of a function that it calls, or a constant that it uses from elsewhere.
    """
    return _compiled(function)


def vectorised(function: Function) -> Function:
    """`compiled` for loops over numbers that are never NaN, so that min and max are vectorized.

    Nothing else is reordered or fused, so results are bit for bit the same wherever it is called.
    """
    return _compiled(function, fastmath={"nnan", "nsz"})


def compilable(function: Function) -> Function:
    """Leaves the function as it is, but compiled code may call it."""
    return register_jitable(function)


def _compiled(function: Function, **more: Any) -> Function:
    options = {"nogil": True, "error_model": "numpy", **more}
    try:
        made = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder for numba's cache, for instance in a read-only container
        return cast(Function, numba.njit(**options)(function))
    # numba itself considers the function's own file only
    made._cache._cache_file._source_stamp = stamp_of(function)
    save = made._cache.save_overload

    def save_unless_disk_full(*arguments: Any) -> None:
        with contextlib.suppress(OSError):  # the disk is full: compiled again next time
            save(*arguments)

    made._cache.save_overload = save_unless_disk_full
    return cast(Function, made)


def stamp_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """A key of everything that determines the compiled code: sources and constants used."""
    made_of: set[str] = set()
    seen: set[FunctionType] = set()
    ahead = [cast(FunctionType, function)]
    while ahead:
        code = ahead.pop()
        if code in seen:
            continue
        seen.add(code)
        made_of.add(_source_of(code.__code__.co_filename))
        for used in _used_by(code):
            if isinstance(used, FunctionType):
                ahead.append(used)
            else:
                made_of.add(used)
    return tuple(sorted(made_of))


def _used_by(function: FunctionType) -> Iterator[FunctionType | str]:
    """Functions and constants that a function uses, from its module and from imported ones."""
    names = (*function.__code__.co_names, *map(str, function.__annotations__.values()))
    known = [(name, function.__globals__.get(name)) for name in names]
    for module in [used for _, used in known if isinstance(used, ModuleType) and used is not np]:
        known += [(f"{module.__name__}.{name}", vars(module).get(name)) for name in names]
    for name, used in known:
        used = getattr(used, "py_func", getattr(used, "_defn", used))  # an intrinsic's generator
        if isinstance(used, FunctionType):
            yield used
        elif isinstance(used, np.ndarray):
            yield f"{name} = {used.dtype} {used.tolist()}"
        elif isinstance(used, type) and issubclass(used, tuple):  # fields compile to indices
            yield f"{name} = {getattr(used, '_fields', ())}"
        elif isinstance(used, int | float | str | tuple | np.generic | np.dtype):
            yield f"{name} = {used!r}"


@functools.cache
def _source_of(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:  # not a file, for instance in an archive, whose name has its version
        return path
