"""The forward that a session requests, and how several are laid out in one batch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, Union

import numpy as np
import numpy.typing as npt
from torch import Tensor

from draftloop.runtime.kv_cache import Mask, Slot

if TYPE_CHECKING:
    from draftloop.runtime.model import LanguageModel
    from draftloop.runtime.prepared import Passes

T = TypeVar("T")


@dataclass(slots=True)
class Forward:
    """New tokens of one session: first committed ones in sequence, then nodes of its draft tree.

    `node_parents` index the slot's pending rows (-1: the last committed token). The result is the
    logits of the rows from `logits_from` on, float32 [rows, vocabulary].
    """

    model: LanguageModel
    slot: Slot
    committed_token_ids: Sequence[int]
    node_token_ids: Sequence[int] = ()
    node_parents: Sequence[int] = ()
    logits_from: int = 0
    left: int = 0  # committed tokens of a prompt that are still to be run, including these
    # Called just before the forward runs: copies rows that other sessions have computed while it
    # waited, and returns the forward that is then needed. None if it is too short to matter.
    renewed: Callable[[], Forward] | None = None

    @property
    def rows(self) -> int:
        """Number of new tokens."""
        return len(self.committed_token_ids) + len(self.node_token_ids)


Wish = Union[Forward, "Passes"]
Task = Generator[Wish, Tensor, T]
"""A computation that yields forwards, is sent their logits, and returns a T."""


@dataclass(slots=True)
class Segment:
    """The place of one Forward in a batch: its rows, where they are stored, what they attend to."""

    slot: int
    start: int
    stop: int
    stored_from: int
    stored_to: int
    # [rows, stored_to]; None if rows attend to all earlier rows and, causally, to one another
    mask: Mask | None
    causal: bool
    committed: int  # number of stored rows whose index is their position
    pending_depths: list[int]  # depths of the other stored rows, from 1
    # derived once by attention for all layers, by the layer's sliding window
    windowed_masks: dict[int, Mask] = field(default_factory=dict)
    biases: dict[int | None, npt.NDArray[np.float32]] = field(default_factory=dict)
    masks_on_device: dict[int | None, Tensor] = field(default_factory=dict)

    @property
    def stored_positions(self) -> npt.NDArray[np.int64]:
        """[stored_to]: absolute position of every stored row; the new rows come last."""
        depths = np.array(self.pending_depths, dtype=np.int64)
        before = np.arange(self.committed, dtype=np.int64)
        return np.concatenate([before, self.committed - 1 + depths])

    @property
    def positions(self) -> list[int]:
        """Absolute positions of the new rows."""
        nodes = self.pending_depths[max(0, self.stored_from - self.committed) :]
        new = range(self.stored_from, self.committed)
        return [*new, *(self.committed - 1 + depth for depth in nodes)]


@dataclass(slots=True)
class Batch:
    """Several Forwards laid out as one sequence of tokens."""

    token_ids: list[int]
    positions: list[int]
    segments: list[Segment]
    logit_rows: list[int]
    logit_counts: list[int]


def lay_out(forwards: Sequence[Forward]) -> Batch:
    """Reserves rows in the slots and lays the forwards out one after the other."""
    batch = Batch([], [], [], [], [])
    for forward in forwards:
        start = len(batch.token_ids)
        segment = _segment(forward, start)
        batch.segments.append(segment)
        batch.token_ids.extend(forward.committed_token_ids)
        batch.token_ids.extend(forward.node_token_ids)
        batch.positions.extend(segment.positions)
        batch.logit_rows.extend(range(start + forward.logits_from, start + forward.rows))
        batch.logit_counts.append(forward.rows - forward.logits_from)
    return batch


def _segment(forward: Forward, start: int) -> Segment:
    slot = forward.slot
    assert forward.rows <= slot.room(), "the caller checks that the draft fits the context"
    stored_from = slot.length + slot.pending
    slot.append(len(forward.committed_token_ids))
    slot.branch(forward.node_token_ids, forward.node_parents)
    causal = stored_from == 0 and not forward.node_token_ids
    mask = None if causal else _mask(forward, stored_from)
    return Segment(
        slot=slot.index,
        start=start,
        stop=start + forward.rows,
        stored_from=stored_from,
        stored_to=stored_from + forward.rows,
        mask=mask,
        causal=causal,
        committed=slot.length,
        pending_depths=slot.pending_depths,
    )


def _mask(forward: Forward, stored_from: int) -> Mask | None:
    """Which stored rows each new row attends to, [rows, stored_from + rows].

    None if these are all rows before it and itself, as in a later chunk of a prompt: such a mask is
    made only where it is needed, as it may take hundreds of MiB.
    """
    slot, committed = forward.slot, len(forward.committed_token_ids)
    nodes = len(forward.node_token_ids)
    if slot.pending == nodes and (not nodes or committed + nodes == 1):
        return None
    mask = np.zeros((forward.rows, stored_from + forward.rows), dtype=np.bool_)
    mask[:, : slot.length] = True
    mask[:committed, slot.length - committed :] = False
    mask[:committed, slot.length - committed : slot.length] = np.tri(committed, dtype=np.bool_)
    mask[committed:, slot.length :] = slot.ancestors(slot.pending - nodes)
    return mask
