"""The inputs of a padded step against the masks that attention uses otherwise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftloop.runtime.cuda_inputs import (
    PREFIX,
    SEEN,
    SLOT,
    STORED,
    TOKEN,
    Inputs,
    Plan,
    _Host,
    plan,
)
from draftloop.runtime.forward import Batch, Forward, Segment, lay_out
from draftloop.runtime.kv_cache import CacheShape, KVCache, Slot
from draftloop.tree import ROOT

WIDTH, ROWS = 24, 8
SHAPE = CacheShape(layers=1, slots=3, kv_heads=1, rows=80, head_dim=4)


def empty_cache() -> KVCache:
    return KVCache(SHAPE, dtype=torch.float32, device=torch.device("cpu"))


def forward(slot: Slot, committed: int, parents: list[int]) -> Forward:
    tokens = list(range(100, 100 + committed))
    nodes = list(range(200, 200 + len(parents)))
    return Forward(None, slot, tokens, nodes, parents)  # type: ignore[arg-type]


def visible_rows(planned: Plan, row: int) -> list[int]:
    """The places in the slot that a row sees, in the order of their positions in its text."""
    visible_count, prefix_rows = int(planned.table[SEEN, row]), int(planned.table[PREFIX, row])
    places = list(range(min(visible_count, prefix_rows)))
    if visible_count > prefix_rows:
        (node,) = (planned.nodes == row).nonzero()[0].tolist()
        places += planned.paths[node, : visible_count - prefix_rows].tolist()
    return places


def expected_rows(segment: Segment, row: int) -> list[int]:
    if segment.mask is None:
        return list(range(segment.stored_from + row + 1))
    stored: list[int] = segment.mask[row].nonzero()[0].tolist()
    return stored


def require_rows_match(batch: Batch, planned: Plan) -> None:
    assert planned.table[TOKEN].tolist() == batch.token_ids
    for segment in batch.segments:
        for row in range(segment.stop - segment.start):
            column = planned.table[:, segment.start + row]
            assert column[SLOT] == segment.slot
            assert column[STORED] == segment.stored_from + row
            places = visible_rows(planned, segment.start + row)
            assert places == expected_rows(segment, row)
            assert places[-1] == column[STORED]
            assert len(places) == batch.positions[segment.start + row] + 1


trees = st.integers(0, 12).flatmap(
    lambda size: st.tuples(*(st.integers(ROOT, node - 1) for node in range(size))).map(list)
)


@settings(deadline=None)  # compiled at first use
@given(
    prompts=st.lists(st.integers(1, 30), min_size=2, max_size=2),
    committed=st.lists(st.integers(0, 4), min_size=2, max_size=2),
    first=st.lists(trees, min_size=2, max_size=2),
    more_parents=st.lists(st.integers(ROOT, 5), max_size=5),
)
def test_row_sees_its_own_text_by_position(
    prompts: list[int], committed: list[int], first: list[list[int]], more_parents: list[int]
) -> None:
    """Prompts, rounds with a draft, and drafts that grow over several forward passes."""
    cache = empty_cache()
    slots = [cache.acquire(WIDTH) for _ in prompts]
    batch = lay_out([forward(slot, count, []) for slot, count in zip(slots, prompts, strict=True)])
    require_rows_match(batch, plan(batch, WIDTH))
    calls = zip(slots, committed, first, strict=True)
    rounds = [forward(*arguments) for arguments in calls if arguments[1] or arguments[2]]
    if rounds:
        batch = lay_out(rounds)
        require_rows_match(batch, plan(batch, WIDTH))
    parents = [min(parent, slots[0].pending - 1) for parent in more_parents]
    if parents:
        batch = lay_out([forward(slots[0], 0, parents)])
        require_rows_match(batch, plan(batch, WIDTH))


def test_rows_are_sent_in_steps_and_padding_sees_nothing() -> None:
    cache = empty_cache()
    slot = cache.acquire(WIDTH)
    lay_out([forward(slot, 5, [])])
    batch = lay_out([forward(slot, 1, [ROOT, 0, 1, ROOT, 3, 0, 1, 2, 7, 8])])
    planned, inputs = plan(batch, WIDTH), Inputs(ROWS, WIDTH, torch.device("cpu"))
    assert inputs.seen.tolist() == [0] * ROWS and inputs.stored.tolist() == [-1] * ROWS
    inputs.write(planned, 0, [0, 7])
    assert inputs.tokens.tolist() == batch.token_ids[:ROWS]
    assert inputs.wanted[:2].tolist() == [0, 7]
    assert inputs.paths[3, :3].tolist() == [6, 7, 8]
    inputs.write(planned, ROWS, [2])
    assert inputs.stored.tolist() == [13, 14, 15, -1, -1, -1, -1, -1]
    assert inputs.seen.tolist() == [10, 11, 12, 0, 0, 0, 0, 0]
    assert inputs.paths[2, :6].tolist() == [6, 7, 8, 13, 14, 15]
    assert inputs.wanted[:1].tolist() == [2]


class Stream(NamedTuple):
    """A stream of a GPU."""

    device: torch.device


class Event:
    """Like CUDA's event: it belongs to the device of the first stream that records it."""

    def __init__(self) -> None:
        self._device: torch.device | None = None

    def record(self, stream: Any = None) -> None:
        device = (stream or torch.cuda.current_stream()).device
        if self._device not in (None, device):
            raise RuntimeError(f"Event device {self._device} does not match {device}")
        self._device = device

    def synchronize(self) -> None:
        """Returns immediately."""


def test_tables_are_sent_to_the_models_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first table is made on the model's GPU; a step selects that GPU before it sends one."""
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    threads = first
    zeros = torch.zeros

    def unpinned(*shape: Any, pin_memory: bool, **options: Any) -> Tensor:
        assert pin_memory
        return zeros(*shape, **options)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream(device or threads))
    monkeypatch.setattr(torch, "zeros", unpinned)
    target = torch.empty(4, dtype=torch.int32)
    like = SimpleNamespace(is_cuda=True, device=second, shape=target.shape, dtype=target.dtype)
    host = _Host(cast(Tensor, like))
    for threads in (first, second):
        host.free()[:] = threads.index + 5
        host.send(target, 4)
        assert target.tolist() == [threads.index + 5] * 4
