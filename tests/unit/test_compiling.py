"""Compiled functions cached on disk are never older than what they are made of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CALLER = """
from draftloop.runtime.compiling import compiled
from {inner} import FACTOR, STEPS, times

@compiled
def result(number):
    return times(number) + 1000 * FACTOR + 100 * STEPS[0]

def hits():
    return sum(result.stats.cache_hits.values())
"""
BY_MODULE = """
import {inner}
from draftloop.runtime.compiling import compiled

@compiled
def result(number):
    return {inner}.times(number) + 1000 * {inner}.FACTOR + 100 * {inner}.STEPS[0]

def hits():
    return sum(result.stats.cache_hits.values())
"""
CALLED = """
import numpy as np
from draftloop.runtime.compiling import {way}

FACTOR, STEPS = {factor}, np.array([{step}])

@{way}
def times(number):
    return {times} * number
"""


FIELDS = """
from typing import NamedTuple

class Pair(NamedTuple):
    {first}: int
    {second}: int
"""
READER = """
from __future__ import annotations
from draftloop.runtime.compiling import compiled
from fields import Pair

@compiled
def difference(pair: Pair) -> int:
    return pair.more - pair.less

def result(number):
    return difference(Pair(more=number, less=1))

def hits():
    return sum(difference.stats.cache_hits.values())
"""
INTRINSIC = """
from numba import types
from numba.extending import intrinsic

@intrinsic
def times(typing, number):
    def generate(context, builder, signature, arguments):
        return builder.mul(arguments[0], context.get_constant(types.int64, {times}))
    return types.int64(types.int64), generate
"""


def run_caller(folder: Path) -> tuple[int, int]:
    """The result of the compiled function in another process, and its number of cache hits."""
    program = "import caller; print(caller.result(7), caller.hits())"
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True
    )
    result, hits = map(int, process.stdout.split())
    return result, hits


@pytest.mark.parametrize("caller", [CALLER, BY_MODULE], ids=["by name", "by module"])
@pytest.mark.parametrize("way", ["compiled", "compilable"])
def test_cache_is_invalidated_when_a_callee_changes(tmp_path: Path, way: str, caller: str) -> None:
    """Compiled drafts used to keep an old layout of forwards, whose module they name."""

    def write(**changes: int) -> None:
        values = {"times": 2, "factor": 3, "step": 4} | changes
        (tmp_path / "called.py").write_text(CALLED.format(way=way, **values), encoding="utf-8")

    (tmp_path / "caller.py").write_text(caller.format(inner="called"), encoding="utf-8")
    write()
    assert run_caller(tmp_path) == (3414, 0)
    assert run_caller(tmp_path) == (3414, 1)
    write(times=5)
    assert run_caller(tmp_path) == (3435, 0)


@pytest.mark.parametrize("caller", [CALLER, BY_MODULE], ids=["by name", "by module"])
def test_cache_is_invalidated_when_a_constant_changes(tmp_path: Path, caller: str) -> None:
    def write(factor: int, step: int) -> None:
        source = CALLED.format(way="compiled", times=2, factor=factor, step=step)
        (tmp_path / "constants.py").write_text(source, encoding="utf-8")

    reexports = "from constants import FACTOR, STEPS\nfrom own import times\n"
    (tmp_path / "called.py").write_text(reexports, encoding="utf-8")
    own_source = CALLED.format(way="compiled", times=2, factor=0, step=0)
    (tmp_path / "own.py").write_text(own_source, encoding="utf-8")
    (tmp_path / "caller.py").write_text(caller.format(inner="called"), encoding="utf-8")
    write(3, 4)
    assert run_caller(tmp_path) == (3414, 0)
    write(5, 4)
    assert run_caller(tmp_path) == (5414, 0)
    write(5, 6)
    assert run_caller(tmp_path) == (5614, 0)
    assert run_caller(tmp_path) == (5614, 1)


def test_cache_is_invalidated_when_tuple_fields_are_reordered(tmp_path: Path) -> None:
    """Numba distinguishes tuples only by the types of their fields."""
    (tmp_path / "caller.py").write_text(READER, encoding="utf-8")
    for first, second in (("more", "less"), ("less", "more")):
        source = FIELDS.format(first=first, second=second)
        (tmp_path / "fields.py").write_text(source, encoding="utf-8")
        assert run_caller(tmp_path) == (6, 0)
    assert run_caller(tmp_path) == (6, 1)


def test_cache_is_invalidated_when_an_intrinsic_changes(tmp_path: Path) -> None:
    caller = CALLER.replace("import FACTOR, STEPS, times", "import times")
    caller = caller.replace(" + 1000 * FACTOR + 100 * STEPS[0]", "")
    (tmp_path / "caller.py").write_text(caller.format(inner="called"), encoding="utf-8")
    for times in (2, 5):
        source = INTRINSIC.format(times=times)
        (tmp_path / "called.py").write_text(source, encoding="utf-8")
        assert run_caller(tmp_path) == (7 * times, 0)
    assert run_caller(tmp_path) == (35, 1)
