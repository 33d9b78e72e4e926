"""The KV cache of all sessions: preallocated slots, addressed by absolute position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from draftloop.runtime import slot_rows
from draftloop.runtime.orders import NO_FOLLOWERS, Copy, Move
from draftloop.runtime.slot_rows import DEPTH, PARENT, TOKEN
from draftloop.tree import ROOT

if TYPE_CHECKING:
    from draftloop.runtime.prefixes import Text

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """Sizes of a cache; `rows` is the capacity of one slot: context plus draft nodes."""

    layers: int
    slots: int
    kv_heads: int
    rows: int
    head_dim: int


class KVCache:
    """`keys[layer]` and `values[layer]`: [slots, kv_heads, rows, head_dim].

    On CPUs, pages that were never written take no memory, so a slot costs only what it holds. No
    row is read before it was written: attention reads a slot up to its newest row only.
    Used from the engine's thread only, except for `acquire` and `release`.
    """

    def __init__(
        self,
        shape: CacheShape,
        *,
        dtype: torch.dtype,
        device: torch.device,
        touched_rows: int | None = None,
    ) -> None:
        """`touched_rows`: rows that may be touched, over all slots, in order to keep old texts."""
        self.shape = shape
        self.lead = NO_FOLLOWERS  # tells other ranks to move the rows of their heads too
        self._touched_rows = touched_rows
        self._reached = [0] * shape.slots  # rows ever written, per slot
        size = (2, shape.layers, shape.slots, shape.kv_heads, shape.rows, shape.head_dim)
        self._rows = torch.empty(size, dtype=dtype, device=device)
        keys, values = self._rows
        self.keys, self.values = keys.unbind(), values.unbind()
        self._free = list(range(shape.slots))[::-1]
        self._held: dict[int, Slot] = {}
        self._kept: dict[int, Slot] = {}  # slots of ended sessions whose rows are still there

    @property
    def free_slots(self) -> int:
        """Slots that no session holds."""
        return len(self._free)

    @property
    def used_rows(self) -> int:
        """Number of rows in use by sessions; callable from any thread."""
        return sum(slot.length + slot.pending for slot in list(self._held.values()))

    def kept_slots(self) -> list[Slot]:
        """Slots of ended sessions whose rows are still there."""
        return list(self._kept.values())

    def known_slots(self) -> list[Slot]:
        """All slots whose rows may be shared."""
        return [*self._held.values(), *self.kept_slots()]

    def acquire(self, max_pending: int, *, index: int | None = None) -> Slot:
        """Takes a free slot: the one at `index`, or else the best one to evict (`_eviction_index`).

        Raises IndexError if none is free, which admission prevents.
        """
        place = self._eviction_index() if index is None else self._free.index(index)
        slot = Slot(self, self._free.pop(place), max_pending)
        self._kept.pop(slot.index, None)
        self._held[slot.index] = slot
        return slot

    def _eviction_index(self) -> int:
        """Index among the free slots of the one to take.

        A slot that was used and keeps no text comes first, then one that was never used, then the
        one freed first. Once `touched_rows` are reached, it is the slot with the most rows ever
        written, so that no further memory is touched.
        """
        if not self._kept:
            return -1
        if self._touched_rows is None or sum(self._reached) < self._touched_rows:
            empty = [place for place, slot in enumerate(self._free) if slot not in self._kept]
            return max(empty, key=lambda place: self._reached[self._free[place]], default=0)
        return max(range(len(self._free)), key=lambda place: self._reached[self._free[place]])

    def release(self, slot: Slot) -> None:
        """Frees a slot (idempotent). Rows of a text to be shared stay until the slot is reused."""
        if not slot.released:
            slot.released = True
            reached = slot.length + slot.pending
            self._reached[slot.index] = max(self._reached[slot.index], reached)
            slot.drop_pending()
            del self._held[slot.index]
            if slot.text is not None and not slot.text.read_only:
                self._kept[slot.index] = slot
            self._free.append(slot.index)

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Copies rows `start` to `stop` from one slot to another."""
        self.lead.send(Copy(source, target, start, stop))
        self._rows[:, :, target, :, start:stop] = self._rows[:, :, source, :, start:stop]

    def move(self, index: int, rows: Sequence[int], start: int) -> None:
        """Compacts the given rows of one slot to `start` and the rows after it.

        The rows must be ascending and not before `start`, so that none is overwritten unmoved.
        """
        staying = 0  # leading rows that are already in place
        while staying < len(rows) and rows[staying] == start + staying:
            staying += 1
        if staying == len(rows):
            return
        self.lead.send(Move(index, rows, start))
        slot = self._rows[:, :, index]
        for place, row in enumerate(rows[staying:], start + staying):
            slot[:, :, :, place] = slot[:, :, :, row]


class Slot:
    """A session's part of the cache: `length` committed rows, then pending rows of a draft tree.

    Row r below `length` holds position r. Pending rows follow in the order in which they were
    added. For each, its token, its parent among them and its depth are stored (`slot_rows`), so
    that a tree can grow over several forwards. Invariant: length + pending <= rows of the cache.
    """

    def __init__(self, cache: KVCache, index: int, max_pending: int) -> None:
        self.cache = cache
        self.index = index
        self.length = 0
        self.released = False
        self.text: Text | None = None  # the text of its rows, if they may be shared
        self.shared = 0  # number of rows that another session computed
        self.pending = 0  # number of pending rows
        self.rows: slot_rows.Rows = np.zeros((3, max_pending), np.int64)

    @property
    def pending_token_ids(self) -> list[int]:
        """Tokens of the pending rows."""
        return self._pending(TOKEN)

    @property
    def pending_parents(self) -> list[int]:
        """Parents of the pending rows, as indices among them, or ROOT."""
        return self._pending(PARENT)

    @property
    def pending_depths(self) -> list[int]:
        """Depths of the pending rows, from 1."""
        return self._pending(DEPTH)

    def _pending(self, kind: int) -> list[int]:
        known: list[int] = self.rows[kind, : self.pending].tolist()
        return known

    def follow(self, committed: Sequence[int]) -> None:
        """Sets the growing list of tokens by which other sessions find this slot's rows."""
        if self.text is not None:
            self.text.tokens = committed

    def room(self) -> int:
        """Rows that can still be added."""
        return self.cache.shape.rows - self.length - self.pending

    def append(self, count: int) -> None:
        """Reserves rows for committed tokens whose keys and values are being written."""
        assert not (count and self.pending), "committed rows cannot follow pending ones"
        self.length += count

    def branch(self, token_ids: Sequence[int], parents: Sequence[int]) -> None:
        """Reserves pending rows for draft nodes; parents are indices of pending rows, or ROOT."""
        first, stop = self.pending, self.pending + len(token_ids)
        if stop > first:
            self.rows[TOKEN, first:stop], self.rows[PARENT, first:stop] = token_ids, parents
            slot_rows.fill_depths(self.rows, first, stop)
            self.pending = stop

    def ancestors(self, first: int) -> Mask:
        """The ancestor mask of the pending rows from `first` on: [rows, pending]."""
        mask = np.zeros((self.pending - first, self.pending), np.bool_)
        slot_rows.fill_ancestor_mask(self.rows, first, mask)
        return mask

    def advance(self, committed: Sequence[int]) -> None:
        """Commits the pending rows that match the committed text and drops the others."""
        if self.pending:
            path = np.empty(self.pending, np.int64)
            tokens = np.array(committed[self.length :][: self.pending], np.int64)
            count = slot_rows.follow(self.rows, self.pending, tokens, path)
            self._move(path[:count].tolist())
            self.drop_pending()
            self.length += count

    def _move(self, rows: Sequence[int]) -> None:
        self.cache.move(self.index, [self.length + row for row in rows], self.length)

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps only the given pending rows, which are ascending and include their parents."""
        self._move(rows)
        slot_rows.keep(self.rows, np.array(rows, np.int64))
        self.pending = len(rows)

    def reroot(self, path: Sequence[int], rows: Sequence[int]) -> None:
        """Commits the pending rows of `path`, which starts at the root; keeps `rows` as pending.

        `rows` are ascending descendants of the path's end; each one's parent is that end or is also
        among them.
        """
        self.keep([*path, *rows])
        count = len(path)
        token_ids = self.pending_token_ids[count:]
        parents = [parent - count for parent in self.pending_parents[count:]]
        self.drop_pending()
        self.length += count
        self.branch(token_ids, [max(parent, ROOT) for parent in parents])

    def drop_pending(self, keep: int = 0) -> None:
        """Drops all pending rows except the first `keep`."""
        self.pending = min(self.pending, keep)

    def truncate(self, length: int) -> None:
        """Drops everything at and beyond position `length`."""
        self.drop_pending()
        self.length = min(self.length, length)
