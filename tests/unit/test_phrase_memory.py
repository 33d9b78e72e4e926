"""The memory of a phrase index: bounded, and freed for good."""

from __future__ import annotations

import contextlib

import pytest

from phrase_store.index import PhraseIndex
from tests.support.fresh_process import output_of

MIB = 1 << 20


def test_clear_does_not_reallocate_released_memory() -> None:
    index = PhraseIndex(max_bytes=MIB, grows=True)
    index.extend((), [1, 2, 3])

    class ReleasingLock(contextlib.nullcontext[None]):
        """Another thread frees the index while this one waits for the lock."""

        def __enter__(self) -> None:
            index.lock = contextlib.nullcontext()  # type: ignore[assignment]
            index.free()

    index.lock = ReleasingLock()  # type: ignore[assignment]
    index.clear()
    assert index.bytes == 0


MILLION = """
import numpy, psutil
from draftloop.phrase import Phrase
from phrase_store.index import PhraseIndex, warm_up
warm_up()
def insert(count):
    numbers = numpy.random.default_rng(count)
    for _ in range(count // 1000):
        rows = numbers.integers(0, 1 << 31, (1000, 3)).tolist()
        index.insert([Phrase((a, b), (c,)) for a, b, c in rows])
index = PhraseIndex(max_bytes=1 << 12)
insert(5000)
process = psutil.Process()
before = process.memory_info().rss
index = PhraseIndex(max_bytes=16 << 20, grows=GROWS)
insert(1_000_000)
assert index.evictions > 0
print(process.memory_info().rss - before)
"""


@pytest.mark.parametrize("grows", [False, True])
def test_a_million_inserts_stay_within_the_budget(grows: bool) -> None:
    slack = 4 * MIB
    assert PhraseIndex(max_bytes=16 * MIB, grows=grows).bytes <= 16 * MIB
    assert int(output_of(f"GROWS = {grows}\n{MILLION}")) <= 16 * MIB + slack
