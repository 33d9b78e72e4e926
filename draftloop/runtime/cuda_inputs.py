"""The inputs of a padded step: one table of integers, copied to the device at once.

A row attends to its text by position: to the committed rows of its slot, whose index is their
position, and, for a draft node, to its ancestors and itself, wherever they are stored after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftloop.runtime.forward import Batch, Segment

# Fields of the table, which has a column per row of the step. WANTED: rows whose logits are wanted.
TOKEN, SLOT, STORED, SEEN, PREFIX, WANTED = range(6)
FIELDS = 6
# A padding row attends to nothing and is not stored.
PADDING = np.array([[0], [0], [-1], [0], [0], [0]], np.int32)
# Maximum number of copies in flight.
IN_FLIGHT = 4

Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch's rows: table [PREFIX + 1, rows], and paths [nodes, width] of the rows `nodes`.

    A path holds the rows in the slot of a node's ancestors, from the root on, and of itself.
    """

    table: Numbers
    nodes: npt.NDArray[np.int64]
    paths: Numbers


def plan(batch: Batch, width: int) -> Plan:
    """Where a batch's rows are stored and what they attend to; `width`: maximum path length."""
    table = np.empty((WANTED, len(batch.token_ids)), np.int32)
    table[TOKEN] = batch.token_ids
    table[SEEN] = batch.positions
    table[SEEN] += 1
    nodes, paths = [], []
    for segment in batch.segments:
        columns = table[:, segment.start : segment.stop]
        columns[SLOT] = segment.slot
        columns[STORED] = np.arange(segment.stored_from, segment.stored_to)
        columns[PREFIX] = segment.committed
        if segment.mask is None or segment.stored_to == segment.committed:
            columns[PREFIX] = segment.stored_to  # the index of every row is its position
        else:
            rows, path = _paths(segment, segment.mask[:, segment.committed :], width)
            nodes.append(rows)
            paths.append(path)
    if not nodes:
        return Plan(table, np.empty(0, np.int64), np.empty((0, width), np.int32))
    return Plan(table, np.concatenate(nodes), np.concatenate(paths))


def _paths(
    segment: Segment, seen: npt.NDArray[np.bool_], width: int
) -> tuple[npt.NDArray[np.int64], Numbers]:
    """The segment's nodes, as rows of the batch, and their paths; seen: [rows, pending]."""
    rows, nodes = np.nonzero(seen)  # parents come before children, so from the root on
    lengths = np.bincount(rows, minlength=len(seen))
    depths = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    paths = np.zeros((len(seen), width), np.int32)
    paths[rows, depths] = nodes + segment.committed
    drafted = np.flatnonzero(lengths)
    return drafted + segment.start, paths[drafted]


class Inputs:
    """The tensors that each step reads, at fixed addresses: int32 [rows], paths [rows, width]."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self.rows, self.width = rows, width
        self._up = torch.empty(rows * (FIELDS + width), dtype=torch.int32, device=device)
        table = self._up[: rows * FIELDS].view(FIELDS, rows)
        self.paths = self._up[rows * FIELDS :].view(rows, width)
        self.tokens, self.slots, self.stored = table[TOKEN], table[SLOT], table[STORED]
        self.seen, self.prefixes, self.wanted = table[SEEN], table[PREFIX], table[WANTED]
        self._hosts = [_Host(self._up) for _ in range(IN_FLIGHT)]
        self._turn = 0
        self.write(
            Plan(np.empty((WANTED, 0), np.int32), np.empty(0, np.int64), self._empty_paths), 0
        )

    @property
    def _empty_paths(self) -> Numbers:
        return np.empty((0, self.width), np.int32)

    def write(self, plan: Plan, start: int, wanted: Sequence[int] | Numbers = ()) -> None:
        """Copies the plan's rows from `start` on to the device, as many as fit; pads the rest.

        `wanted`: rows of the step whose logits are wanted.
        """
        self._turn = (self._turn + 1) % IN_FLIGHT
        host = self._hosts[self._turn]
        values = host.free()
        table = values[: self.rows * FIELDS].reshape(FIELDS, self.rows)
        columns = plan.table[:, start : start + self.rows]
        count = columns.shape[1]
        table[:WANTED, :count] = columns
        table[:, count:] = PADDING
        table[WANTED, : len(wanted)] = wanted
        used = self.rows * FIELDS
        first, stop = np.searchsorted(plan.nodes, (start, start + self.rows))
        if stop > first:
            places = plan.nodes[first:stop] - start
            values[used:].reshape(self.rows, self.width)[places] = plan.paths[first:stop]
            used += (int(places[-1]) + 1) * self.width
        host.send(self._up, used)


class _Host:
    """A host table, pinned for GPUs, that is copied to the device asynchronously."""

    def __init__(self, like: Tensor) -> None:
        pinned, self._device = like.is_cuda, like.device
        self._tensor = torch.zeros(like.shape, dtype=like.dtype, pin_memory=pinned)
        self._values: Numbers = self._tensor.numpy()
        self._sent = torch.cuda.Event() if pinned else None

    def free(self) -> Numbers:
        """The table, after waiting for its last copy to complete."""
        if self._sent is not None:
            self._sent.synchronize()
        return self._values

    def send(self, to: Tensor, used: int) -> None:
        """Starts copying the first `used` values."""
        to[:used].copy_(self._tensor[:used], non_blocking=True)
        if self._sent is not None:  # an event stays bound to the device of its first stream
            self._sent.record(torch.cuda.current_stream(self._device))
