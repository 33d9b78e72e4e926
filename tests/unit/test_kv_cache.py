"""Slots: which rows a session keeps."""

from __future__ import annotations

import pytest
import torch

from draftloop.runtime.kv_cache import CacheShape, KVCache, Slot
from draftloop.tree import ROOT

SHAPE = CacheShape(layers=2, slots=2, kv_heads=2, rows=16, head_dim=3)


@pytest.fixture
def slot() -> Slot:
    """Row r of every tensor of the slot holds r."""
    cache = KVCache(SHAPE, dtype=torch.float32, device=torch.device("cpu"))
    for tensor in (*cache.keys, *cache.values):
        tensor[:] = torch.arange(16.0)[:, None]
    return cache.acquire(max_pending=8)


def rows(slot: Slot) -> list[int]:
    kept = slot.cache.keys[1][slot.index, :, : slot.length]
    assert torch.equal(kept, slot.cache.values[0][slot.index, :, : slot.length])
    assert (kept == kept[:1, :, :1]).all()
    return [int(value) for value in kept[0, :, 0]]


def grow(slot: Slot) -> None:
    """Four committed rows, then 10 -> (11 -> 13, 12), 20 -> 21."""
    slot.append(4)
    slot.branch([10, 11, 12], [ROOT, 0, 0])
    slot.branch([13, 20, 21], [1, ROOT, 4])


def test_ancestors_and_depths(slot: Slot) -> None:
    grow(slot)
    assert slot.pending_depths == [1, 2, 2, 3, 1, 2]
    assert slot.ancestors(3)[0].nonzero()[0].tolist() == [0, 1, 3]
    assert slot.ancestors(5)[0].nonzero()[0].tolist() == [4, 5]
    assert slot.room() == 16 - 10


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
    grow(slot)
    slot.advance([1, 2, 3, 4, *after])
    assert rows(slot) == kept
    assert slot.pending == 0
    other = slot.cache.keys[0][1 - slot.index, 0, :, 0]
    assert torch.equal(other, torch.arange(16.0))


def test_a_new_draft_forgets_the_old_one(slot: Slot) -> None:
    grow(slot)
    slot.advance([1, 2, 3, 4, 10])
    slot.branch([7, 8], [ROOT, ROOT])
    assert slot.ancestors(1)[0].tolist() == [False, True]


def test_the_rows_of_a_draft_that_were_added_first_can_be_kept(slot: Slot) -> None:
    grow(slot)
    slot.drop_pending(keep=2)
    assert slot.pending_token_ids == [10, 11] and slot.pending_depths == [1, 2]
    slot.branch([30], [1])
    assert slot.ancestors(2)[0].tolist() == [True, True, True]
    slot.advance([1, 2, 3, 4, 10, 11, 30])
    assert rows(slot) == [0, 1, 2, 3, 4, 5, 6]


def test_truncate_drops_the_draft_too_and_never_lengthens(slot: Slot) -> None:
    grow(slot)
    slot.truncate(9)
    assert (slot.length, slot.pending) == (4, 0)
    slot.truncate(2)
    assert slot.length == 2


def test_slots_are_held_once_and_given_back_once(slot: Slot) -> None:
    cache = slot.cache
    second = cache.acquire(max_pending=8)
    assert second.index != slot.index
    with pytest.raises(IndexError):
        cache.acquire(max_pending=8)
    cache.release(second)
    cache.release(second)
    assert cache.free_slots == 1
