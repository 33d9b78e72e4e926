"""The memory of a phrase index: bounded, allocated in advance, and freed for good."""

from __future__ import annotations

import contextlib
import time

import psutil
import pytest

from phrase_store.index import PhraseIndex
from tests.support.fresh_process import output_of

MIB = 1 << 20


def test_touching_allocates_all_memory_and_lets_others_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a namespace's first request waits for 0.2 seconds, and with it all others.

    A thread that releases a lock and takes it again at once keeps everybody else waiting.
    """
    index, process = PhraseIndex(max_bytes=64 * MIB), psutil.Process()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        assert index.lock.acquire(blocking=False), "others have to wait"
        index.lock.release()
        pauses.append(seconds)

    monkeypatch.setattr(time, "sleep", pause)
    before = process.memory_info().rss
    index.touch()
    assert process.memory_info().rss - before > 60 * MIB
    assert len(pauses) == 32 and min(pauses) > 0


def test_touching_changes_nothing() -> None:
    index = PhraseIndex(max_bytes=4 * MIB)
    index.extend((), list(range(3000)) * 2)
    before = index.table.words.copy()
    index.touch()
    assert before.any() and (index.table.words == before).all()


def test_clear_does_not_reallocate_released_memory() -> None:
    index = PhraseIndex(max_bytes=MIB)
    index.extend((), [1, 2, 3])

    class ReleasingLock(contextlib.nullcontext[None]):
        def __enter__(self) -> None:
            index.table = index.table._replace(words=index.table.words[:0])

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
index = PhraseIndex(max_bytes=16 << 20)
insert(1_000_000)
assert index.evictions > 0
print(process.memory_info().rss - before)
"""


def test_a_million_inserts_stay_within_the_budget() -> None:
    slack = 4 * MIB
    assert PhraseIndex(max_bytes=16 * MIB).bytes <= 16 * MIB
    assert int(output_of(MILLION)) <= 16 * MIB + slack
