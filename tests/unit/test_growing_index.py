"""A growing phrase index: as large as its phrases need, one bucket after the other."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftloop.calibration import Calibration
from draftloop.tree import DraftBudget, DraftTree
from phrase_store.counts import count_phrases
from phrase_store.index import PhraseIndex, grow, warm_up
from phrase_store.table import (
    BUCKET_BYTES,
    CLOCK,
    DOUBLINGS,
    EVICTIONS,
    FIRST_BUCKETS,
    UNSPLIT,
    WAYS,
    Table,
    buckets_in_use,
    empty_table,
)
from tests.support.fresh_process import output_of

KIB, MIB = 1 << 10, 1 << 20
BUDGET = DraftBudget(max_nodes=16, max_depth=8)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm_up()


def random_text(length: int, seed: int = 0, vocabulary: int = 1000) -> list[int]:
    return random.Random(seed).choices(range(vocabulary), k=length)


def extend(index: PhraseIndex, text: Sequence[int], step: int) -> None:
    for start in range(0, len(text), step):
        index.extend(text[max(0, start - 8) : start], text[start : start + step])


def proposed(index: PhraseIndex, context: Sequence[int]) -> DraftTree:
    return grow(context, BUDGET, shared=index, own=None, calibration=Calibration()).tree


def contents(table: Table) -> list[set[tuple[int, ...]]]:
    """The entries of every bucket in use: fingerprint, token, count, tick."""
    buckets = table.words.reshape(-1, 4, WAYS)
    limit = table.state[UNSPLIT]
    last = buckets_in_use(table) + limit
    used = [*range(limit), *range(2 * limit, last)]
    return [{tuple(entry) for entry in buckets[at].T.tolist() if entry[0]} for at in used]


@pytest.mark.parametrize(
    ("max_bytes", "first"),
    [
        (256, 256), (31 * 256, 31 * 256), (32 * 256, 16 * 256), (100 * 256, 25 * 256),
        (64 * MIB, 256 * KIB), (1024 * MIB, 4 * MIB),
    ],
)  # fmt: skip
def test_size_at_first(max_bytes: int, first: int) -> None:
    assert PhraseIndex(max_bytes=max_bytes, grows=True).bytes == first
    assert PhraseIndex(max_bytes=max_bytes).bytes == max_bytes


@pytest.mark.parametrize("max_bytes", [256, 8 * KIB, 100 * KIB, MIB])
def test_grows_with_its_entries_up_to_its_budget(max_bytes: int) -> None:
    index = PhraseIndex(max_bytes=max_bytes, grows=True)
    first = index.bytes
    for seed in range(200):
        index.extend((), random_text(100, seed, vocabulary=10**6))
        # up to eight entries more than a quarter of the ways, for the last token
        at_least = (index.entries - 8) * 4 * BUCKET_BYTES // WAYS
        assert index.bytes == max_bytes or index.bytes >= at_least
        assert index.bytes <= max(first, at_least + 64 * BUCKET_BYTES)
    assert index.evictions > 0 and index.bytes == max_bytes


@given(st.integers(0, 2**32), st.sampled_from([1, 3, 50]), st.integers(100, 3000))
@settings(max_examples=50, deadline=None)
def test_proposes_what_an_index_of_the_final_size_proposes(
    seed: int, step: int, length: int
) -> None:
    text = random_text(length, seed)
    growing, fixed = PhraseIndex(max_bytes=MIB, grows=True), PhraseIndex(max_bytes=MIB)
    for index in (growing, fixed):
        extend(index, text, step)
    if growing.evictions == fixed.evictions == 0:
        assert growing.entries == fixed.entries
        for end in range(1, length, 7):
            context = text[max(0, end - 8) : end]
            assert proposed(growing, context) == proposed(fixed, context)


@given(st.integers(0, 2**32), st.integers(0, 2000))
@settings(max_examples=50, deadline=None)
def test_buckets_are_those_of_a_table_that_had_as_many_from_the_start(
    seed: int, length: int
) -> None:
    text = np.array(random_text(length, seed), np.int32)
    starts, contexts, weights = np.array([0, text.size]), np.array([0]), np.ones(1)
    grown = empty_table(256 * KIB, 0.001, grows=True)
    count_phrases(*grown, text, starts, contexts, weights, 0, 1)
    direct = empty_table(256 * KIB, 0.001, grows=True)
    for total in (FIRST_BUCKETS, DOUBLINGS, UNSPLIT):
        direct.state[total] = grown.state[total]
    count_phrases(*direct, text, starts, contexts, weights, 0, 1)
    if not grown.state[EVICTIONS]:
        assert contents(grown) == contents(direct)


def test_every_bucket_is_split_in_turn() -> None:
    index = PhraseIndex(max_bytes=64 * KIB, grows=True)
    sizes = {index.bytes}
    for context, token in enumerate(random_text(3000, vocabulary=10**6)):
        index.extend((context,), (token,))
        sizes.add(index.bytes)
    assert sizes == set(range(min(sizes), max(sizes) + 1, BUCKET_BYTES))
    assert max(sizes) == 64 * KIB


def test_cleared_index_begins_small_and_keeps_its_totals() -> None:
    index = PhraseIndex(max_bytes=MIB, grows=True)
    first = index.bytes
    extend(index, random_text(9000, vocabulary=10**6), step=100)
    evictions, clock = index.evictions, index.table.state[CLOCK]
    assert evictions and index.bytes > first
    index.clear()
    assert (index.entries, index.bytes, index.evictions) == (0, first, evictions)
    assert index.table.state[CLOCK] == clock
    index.extend((), [1, 2, 3])
    assert proposed(index, (1, 2)).token_ids == (3,)


FEW_PHRASES = """
import psutil
from phrase_store.index import PhraseIndex, warm_up
warm_up()
process = psutil.Process()
before = process.memory_info().rss
tenants = [PhraseIndex(max_bytes=64 << 20, grows=True) for _ in range(8)]
for index in tenants:
    index.extend((), list(range(1000)))
print(process.memory_info().rss - before)
"""


def test_tenants_with_few_phrases_take_little_memory() -> None:
    """Their first requests would also wait for it: 0.2 seconds for 64 MiB on a virtual machine.

    A table may take a huge page of 2 MiB at both of its ends.
    """
    assert int(output_of(FEW_PHRASES)) < 8 * 5 * MIB
