"""Slots of the KV cache: which rows a session keeps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftloop.runtime.kv_cache import CacheShape, KVCache, Slot
from draftloop.tree import ROOT

SHAPE = CacheShape(layers=2, slots=2, kv_heads=2, rows=16, head_dim=3)
MOST_NODES = 64
CHAIN = tuple(range(ROOT, MOST_NODES - 1))


@pytest.fixture
def slot() -> Slot:
    return numbered_cache(SHAPE).acquire(max_pending=8)


def numbered_cache(shape: CacheShape) -> KVCache:
    """A cache in which row r of every tensor of every slot holds r."""
    cache = KVCache(shape, dtype=torch.float32, device=torch.device("cpu"))
    for tensor in (*cache.keys, *cache.values):
        tensor[:] = torch.arange(float(shape.rows))[:, None]
    return cache


def kept_rows(slot: Slot) -> list[int]:
    kept = slot.cache.keys[1][slot.index, :, : slot.length]
    assert torch.equal(kept, slot.cache.values[0][slot.index, :, : slot.length])
    assert (kept == kept[:1, :, :1]).all()
    return [int(value) for value in kept[0, :, 0]]


def grow_tree(slot: Slot) -> None:
    """Appends four committed rows, then 10 -> (11 -> 13, 12), 20 -> 21."""
    slot.append(4)
    slot.branch([10, 11, 12], [ROOT, 0, 0])
    slot.branch([13, 20, 21], [1, ROOT, 4])


def test_pending_ancestors_and_depths(slot: Slot) -> None:
    grow_tree(slot)
    assert slot.pending_depths == [1, 2, 2, 3, 1, 2]
    assert slot.ancestors(3)[0].nonzero()[0].tolist() == [0, 1, 3]
    assert slot.ancestors(5)[0].nonzero()[0].tolist() == [4, 5]
    assert slot.room() == 16 - 10


def parents_of(count: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Parents of `count` nodes; every second one follows the node before it, for long paths."""
    each = (st.just(node - 1) | st.integers(ROOT, node - 1) for node in range(count))
    return st.tuples(*each)


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the root down to this one, by the definition."""
    return [] if node == ROOT else [*path_to(parents, parents[node]), node]


@settings(deadline=None)
@given(
    parents=st.integers(1, MOST_NODES).flatmap(parents_of),
    cuts=st.sets(st.integers(1, MOST_NODES - 1), max_size=8),
    data=st.data(),
)
def test_nodes_see_exactly_their_ancestors_whose_rows_are_kept(
    parents: tuple[int, ...], cuts: set[int], data: st.DataObject
) -> None:
    """For any shape and depth, grown in any number of forwards, committed down to any node."""
    end = data.draw(st.integers(ROOT, len(parents) - 1))
    check_ancestors_and_kept_path(parents, cuts, end)


@pytest.mark.parametrize("cuts", [set(), {1, 33}, set(range(1, MOST_NODES))], ids=len)
def test_nodes_of_a_deep_chain_see_their_ancestors(cuts: set[int]) -> None:
    """Grown in one forward pass, in three, and in one per node."""
    for end in (ROOT, 0, 31, MOST_NODES - 1):
        check_ancestors_and_kept_path(CHAIN, cuts, end)


def check_ancestors_and_kept_path(parents: Sequence[int], cuts: set[int], end: int) -> None:
    slot = numbered_cache(replace(SHAPE, rows=4 + MOST_NODES)).acquire(max_pending=MOST_NODES)
    slot.append(4)
    steps = sorted({0, len(parents), *(cut for cut in cuts if cut < len(parents))})
    for first, stop in itertools.pairwise(steps):
        slot.branch(range(100 + first, 100 + stop), parents[first:stop])
        ancestors = [row.nonzero()[0].tolist() for row in slot.ancestors(first)]
        assert ancestors == [path_to(parents, node) for node in range(first, stop)]
    path = path_to(parents, end)
    slot.advance([1, 2, 3, 4, *(100 + node for node in path), 99])
    assert kept_rows(slot) == [0, 1, 2, 3, *(4 + node for node in path)]


@pytest.mark.parametrize(
    ("after", "kept"),
    [
        ([], [0, 1, 2, 3]),
        ([10, 12], [0, 1, 2, 3, 4, 6]),
        ([10, 11, 13, 99], [0, 1, 2, 3, 4, 5, 7]),
        ([20, 21], [0, 1, 2, 3, 8, 9]),
        ([99, 10], [0, 1, 2, 3]),
    ],
)
def test_advance_keeps_the_rows_of_the_committed_path(
    slot: Slot, after: list[int], kept: list[int]
) -> None:
    grow_tree(slot)
    slot.advance([1, 2, 3, 4, *after])
    assert kept_rows(slot) == kept
    assert slot.pending == 0
    other_rows = slot.cache.keys[0][1 - slot.index, 0, :, 0]
    assert torch.equal(other_rows, torch.arange(16.0))


def test_new_draft_replaces_the_previous_one(slot: Slot) -> None:
    grow_tree(slot)
    slot.advance([1, 2, 3, 4, 10])
    slot.branch([7, 8], [ROOT, ROOT])
    assert slot.ancestors(1)[0].tolist() == [False, True]


def test_first_rows_of_a_draft_can_be_kept(slot: Slot) -> None:
    grow_tree(slot)
    slot.drop_pending(keep=2)
    assert slot.pending_token_ids == [10, 11] and slot.pending_depths == [1, 2]
    slot.branch([30], [1])
    assert slot.ancestors(2)[0].tolist() == [True, True, True]
    slot.advance([1, 2, 3, 4, 10, 11, 30])
    assert kept_rows(slot) == [0, 1, 2, 3, 4, 5, 6]


def test_kept_rows_keep_their_places_in_the_tree(slot: Slot) -> None:
    grow_tree(slot)
    slot.keep([0, 2, 4, 5])
    assert slot.pending_token_ids == [10, 12, 20, 21]
    assert slot.pending_parents == [ROOT, 0, ROOT, 2]
    assert slot.pending_depths == [1, 2, 1, 2]


def test_truncate_drops_the_draft_and_never_lengthens(slot: Slot) -> None:
    grow_tree(slot)
    slot.truncate(9)
    assert (slot.length, slot.pending) == (4, 0)
    slot.truncate(2)
    assert slot.length == 2


def test_used_rows_include_drafts(slot: Slot) -> None:
    grow_tree(slot)
    assert slot.cache.used_rows == 10
    slot.cache.release(slot)
    assert slot.cache.used_rows == 0 and max(slot.cache._reached) == 10


def test_slots_are_acquired_and_released_once(slot: Slot) -> None:
    cache = slot.cache
    second = cache.acquire(max_pending=8)
    assert second.index != slot.index
    with pytest.raises(IndexError):
        cache.acquire(max_pending=8)
    cache.release(second)
    cache.release(second)
    assert cache.free_slots == 1
