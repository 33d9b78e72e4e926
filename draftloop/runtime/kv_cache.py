"""Keys and values of all sessions, preallocated and addressed by absolute position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from draftloop.tree import ROOT

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

    def __init__(self, shape: CacheShape, *, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        size = (2, shape.layers, shape.slots, shape.kv_heads, shape.rows, shape.head_dim)
        self._rows = torch.empty(size, dtype=dtype, device=device)
        keys, values = self._rows
        self.keys, self.values = keys.unbind(), values.unbind()
        self._free = list(range(shape.slots))[::-1]
        self._held: dict[int, Slot] = {}

    @property
    def free_slots(self) -> int:
        """Slots that no session holds."""
        return len(self._free)

    @property
    def used_rows(self) -> int:
        """Rows that hold keys and values of a session; from any thread."""
        return sum(slot.length + slot.pending for slot in list(self._held.values()))

    def acquire(self, max_pending: int) -> Slot:
        """An empty slot. Raises IndexError when none is free: admission comes before."""
        slot = Slot(self, self._free.pop(), max_pending)
        self._held[slot.index] = slot
        return slot

    def release(self, slot: Slot) -> None:
        """Takes a slot back; twice is once."""
        if not slot.released:
            slot.released = True
            del self._held[slot.index]
            self._free.append(slot.index)

    def move(self, index: int, rows: Sequence[int], start: int) -> None:
        """Moves the given rows of one slot together, to `start` and the rows after it.

        They are ascending and not before `start`, so none is overwritten before it was moved.
        """
        staying = 0  # those that are where they belong come first
        while staying < len(rows) and rows[staying] == start + staying:
            staying += 1
        if staying == len(rows):
            return
        slot = self._rows[:, :, index]
        for place, row in enumerate(rows[staying:], start + staying):
            slot[:, :, :, place] = slot[:, :, :, row]


class Slot:
    """A session's room: `length` committed rows, then the pending rows of a draft tree.

    Row r below `length` holds position r. Pending rows lie behind in the order they were added;
    each knows its parent among them, its token and its ancestors, so a tree may grow over several
    forwards. Invariant: length + pending <= rows of the cache.
    """

    def __init__(self, cache: KVCache, index: int, max_pending: int) -> None:
        self.cache = cache
        self.index = index
        self.length = 0
        self.released = False
        self.pending_token_ids: list[int] = []
        self.pending_parents: list[int] = []
        self.pending_depths: list[int] = []
        # ancestors[i, j]: pending row i sees pending row j
        self.ancestors: Mask = np.zeros((max_pending, max_pending), dtype=np.bool_)

    @property
    def pending(self) -> int:
        """Number of pending rows."""
        return len(self.pending_token_ids)

    def room(self) -> int:
        """Rows that can still be added."""
        return self.cache.shape.rows - self.length - self.pending

    def append(self, count: int) -> None:
        """Counts in committed tokens whose keys and values are being written."""
        assert not self.pending, "committed rows cannot follow pending ones"
        self.length += count

    def branch(self, token_ids: Sequence[int], parents: Sequence[int]) -> None:
        """Counts in draft nodes; a parent is an index among all pending rows or ROOT."""
        for token, parent in zip(token_ids, parents, strict=True):
            row = self.pending
            self.ancestors[row] = False
            if parent != ROOT:
                self.ancestors[row] = self.ancestors[parent]
            self.ancestors[row, row] = True
            depth = 1 if parent == ROOT else self.pending_depths[parent] + 1
            self.pending_token_ids.append(token)
            self.pending_parents.append(parent)
            self.pending_depths.append(depth)

    def advance(self, committed: Sequence[int]) -> None:
        """Keeps the pending rows that the committed text followed and drops the others."""
        children = {
            pair: row
            for row, pair in enumerate(
                zip(self.pending_parents, self.pending_token_ids, strict=True)
            )
        }
        path: list[int] = []
        node = ROOT
        for token in committed[self.length :]:
            found = children.get((node, token))
            if found is None:
                break
            path.append(found)
            node = found
        self.cache.move(self.index, [self.length + row for row in path], self.length)
        self.drop_pending()
        self.length += len(path)

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps the given pending rows, ascending, their parents among them; drops the others."""
        places = {row: place for place, row in enumerate(rows)} | {ROOT: ROOT}
        token_ids = [self.pending_token_ids[row] for row in rows]
        parents = [places[self.pending_parents[row]] for row in rows]
        self.cache.move(self.index, [self.length + row for row in rows], self.length)
        self.drop_pending()
        self.branch(token_ids, parents)

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
        del self.pending_token_ids[keep:]
        del self.pending_parents[keep:]
        del self.pending_depths[keep:]

    def truncate(self, length: int) -> None:
        """Drops everything at and beyond position `length`."""
        self.drop_pending()
        self.length = min(self.length, length)
