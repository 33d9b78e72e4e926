"""Keys and values of all sessions, preallocated and addressed by absolute position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from draftloop.runtime import slot_rows
from draftloop.runtime.orders import NOBODY, Copy, Move
from draftloop.runtime.slot_rows import DEPTH, PARENT, TOKEN
from draftloop.tree import ROOT

if TYPE_CHECKING:
    from draftloop.runtime.prefixes import Text

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """Sizes of a cache; `rows` is the room of one session: context plus draft nodes."""

    layers: int
    slots: int
    kv_heads: int
    rows: int
    head_dim: int


class KVCache:
    """`keys[layer]` and `values[layer]`: [slots, kv_heads, rows, head_dim].

    Pages that were never written take no memory on the CPU, so long slots cost what they hold.
    No row is read before it was written: attention sees a slot up to its newest row only.
    Used from the engine thread only, except for `acquire` and `release`.
    """

    def __init__(
        self,
        shape: CacheShape,
        *,
        dtype: torch.dtype,
        device: torch.device,
        touched_rows: int | None = None,
    ) -> None:
        """`touched_rows`: so many may be written to for no other sake than that texts are kept."""
        self.shape = shape
        self.lead = NOBODY  # who moves the rows of other heads along
        self._touched_rows = touched_rows
        self._reached = [0] * shape.slots  # rows that were ever written to
        size = (2, shape.layers, shape.slots, shape.kv_heads, shape.rows, shape.head_dim)
        self._rows = torch.empty(size, dtype=dtype, device=device)
        keys, values = self._rows
        self.keys, self.values = keys.unbind(), values.unbind()
        self._free = list(range(shape.slots))[::-1]
        self._held: dict[int, Slot] = {}
        self._kept: dict[int, Slot] = {}  # whose sessions have ended, with what they held

    @property
    def free_slots(self) -> int:
        """Slots that no session holds."""
        return len(self._free)

    @property
    def used_rows(self) -> int:
        """Rows that hold keys and values of a session; from any thread."""
        return sum(slot.length + slot.pending for slot in list(self._held.values()))

    def kept_slots(self) -> list[Slot]:
        """Those without a session whose rows are still there."""
        return list(self._kept.values())

    def known_slots(self) -> list[Slot]:
        """All whose rows may be shared."""
        return [*self._held.values(), *self.kept_slots()]

    def acquire(self, max_pending: int, *, index: int | None = None) -> Slot:
        """An empty slot: this one, or the one whose rows have been of no use for longest.

        Raises IndexError when none is free: admission comes before.
        """
        place = self._least_use() if index is None else self._free.index(index)
        slot = Slot(self, self._free.pop(place), max_pending)
        self._kept.pop(slot.index, None)
        self._held[slot.index] = slot
        return slot

    def _least_use(self) -> int:
        """Which of the free slots to take; the oldest come first among them.

        Where memory should be touched no further, the one that has been written to furthest.
        """
        if not self._kept:
            return -1
        if self._touched_rows is None or sum(self._reached) < self._touched_rows:
            return 0
        return max(range(len(self._free)), key=lambda place: self._reached[self._free[place]])

    def release(self, slot: Slot) -> None:
        """Takes a slot back; twice is once. What it holds of a text stays until it is needed."""
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
        """Copies these rows from one slot to another."""
        self.lead.tell(Copy(source, target, start, stop))
        self._rows[:, :, target, :, start:stop] = self._rows[:, :, source, :, start:stop]

    def move(self, index: int, rows: Sequence[int], start: int) -> None:
        """Moves the given rows of one slot together, to `start` and the rows after it.

        They are ascending and not before `start`, so none is overwritten before it was moved.
        """
        staying = 0  # those that are where they belong come first
        while staying < len(rows) and rows[staying] == start + staying:
            staying += 1
        if staying == len(rows):
            return
        self.lead.tell(Move(index, rows, start))
        slot = self._rows[:, :, index]
        for place, row in enumerate(rows[staying:], start + staying):
            slot[:, :, :, place] = slot[:, :, :, row]


class Slot:
    """A session's room: `length` committed rows, then the pending rows of a draft tree.

    Row r below `length` holds position r. Pending rows lie behind in the order they were added;
    each knows its token, its parent among them and its depth (`slot_rows`), so a tree may grow over
    several forwards. Invariant: length + pending <= rows of the cache.
    """

    def __init__(self, cache: KVCache, index: int, max_pending: int) -> None:
        self.cache = cache
        self.index = index
        self.length = 0
        self.released = False
        self.text: Text | None = None  # what its rows are of, where they may be shared
        self.shared = 0  # rows that another session computed
        self.pending = 0  # number of pending rows
        self.rows: slot_rows.Rows = np.zeros((3, max_pending), np.int64)

    @property
    def pending_token_ids(self) -> list[int]:
        """Tokens of the pending rows."""
        return self._pending(TOKEN)

    @property
    def pending_parents(self) -> list[int]:
        """Their parents among them, or ROOT."""
        return self._pending(PARENT)

    @property
    def pending_depths(self) -> list[int]:
        """Their depths, from 1."""
        return self._pending(DEPTH)

    def _pending(self, kind: int) -> list[int]:
        known: list[int] = self.rows[kind, : self.pending].tolist()
        return known

    def follow(self, committed: Sequence[int]) -> None:
        """Lets others find its rows by these tokens, as they grow."""
        if self.text is not None:
            self.text.tokens = committed

    def room(self) -> int:
        """Rows that can still be added."""
        return self.cache.shape.rows - self.length - self.pending

    def append(self, count: int) -> None:
        """Counts in committed tokens whose keys and values are being written."""
        assert not (count and self.pending), "committed rows cannot follow pending ones"
        self.length += count

    def branch(self, token_ids: Sequence[int], parents: Sequence[int]) -> None:
        """Counts in draft nodes; a parent is an index among all pending rows or ROOT."""
        first, stop = self.pending, self.pending + len(token_ids)
        if stop > first:
            self.rows[TOKEN, first:stop], self.rows[PARENT, first:stop] = token_ids, parents
            slot_rows.deepen(self.rows, first, stop)
            self.pending = stop

    def ancestors(self, first: int) -> Mask:
        """[rows, pending] for the pending rows from `first` on: which of them all each one sees."""
        mask = np.zeros((self.pending - first, self.pending), np.bool_)
        slot_rows.show_ancestors(self.rows, first, mask)
        return mask

    def advance(self, committed: Sequence[int]) -> None:
        """Keeps the pending rows that the committed text followed and drops the others."""
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
        """Keeps the given pending rows, ascending, their parents among them; drops the others."""
        self._move(rows)
        slot_rows.keep(self.rows, np.array(rows, np.int64))
        self.pending = len(rows)

    def reroot(self, path: Sequence[int], rows: Sequence[int]) -> None:
        """Commits the pending rows of `path`, which starts at the root, and keeps `rows` behind it.

        Those are ascending, follow the path's end and hold their parents, or that end, too.
        """
        self.keep([*path, *rows])
        count = len(path)
        token_ids = self.pending_token_ids[count:]
        parents = [parent - count for parent in self.pending_parents[count:]]
        self.drop_pending()
        self.length += count
        self.branch(token_ids, [max(parent, ROOT) for parent in parents])

    def drop_pending(self, keep: int = 0) -> None:
        """Forgets the draft, but for the `keep` pending rows that were added first."""
        self.pending = min(self.pending, keep)

    def truncate(self, length: int) -> None:
        """Drops everything at and beyond position `length`."""
        self.drop_pending()
        self.length = min(self.length, length)
