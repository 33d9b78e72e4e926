"""Forwards of one session that compiled code lays out and runs by itself, several in a row.

What a forward is told and what it says are arrays at fixed places; records that name them go to
`cpu_stack_kernel` and `cpu_choice_kernel`. Laid out by torch and numpy, piece by piece, a forward
of a small draft model waits for Python longer than it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from draftloop.runtime import cpu_choice
from draftloop.runtime.cpu_linear import UNIT
from draftloop.runtime.cpu_stack import CpuStack
from draftloop.runtime.forward import Forward
from draftloop.runtime.kv_cache import KVCache, Slot
from draftloop.runtime.records import LANES, Records
from draftloop.runtime.step import ROUND_TOKENS

if TYPE_CHECKING:
    from draftloop.runtime.model import LanguageModel

if UNIT is not None:
    from draftloop.runtime import layout
    from draftloop.runtime.cpu_choice_kernel import CALL_FIELDS
    from draftloop.runtime.cpu_stack_kernel import CALL_FIELDS as STACK_FIELDS
    from draftloop.runtime.cpu_stack_kernel import SEGMENT_FIELDS

    TEMPERATURE, LOGITS = CALL_FIELDS.index("temperature"), STACK_FIELDS.index("logits")
    SLOT, BIASES = SEGMENT_FIELDS.index("slot"), SEGMENT_FIELDS.index("biases")

MOST_FORWARDS = 64  # in a row


class Pass(NamedTuple):
    """A forward that was run: its rows, those of them that are draft nodes, and its time."""

    rows: int
    nodes: int
    nanoseconds: int


@dataclass(slots=True)
class Passes:
    """A wish of the engine's: forwards of one session, run in one call until it is done."""

    model: LanguageModel
    slot: Slot
    run: Callable[[], Sequence[Pass]]


class Prepared:
    """The arrays of one model; used from its engine's thread, by one session at a time.

    `most_nodes`: of a draft. A forward may have so many rows, and the tokens of a round.
    """

    def __init__(
        self, stack: CpuStack, cache: KVCache, vocabulary_size: int, most_nodes: int
    ) -> None:
        assert UNIT is not None, "a stack has kernels"
        self._stack, self._cache = stack, cache
        self._vocabulary_size, self._rows = vocabulary_size, most_nodes + ROUND_TOKENS
        self._silence = cpu_choice.silence(vocabulary_size)
        self._silent = np.full(cache.shape.rows, self._silence.data_ptr())
        entries = np.array([stack.entry, cpu_choice.entry(), UNIT.lanes], np.int64)
        segment, window = np.zeros((1, len(SEGMENT_FIELDS)), np.int64), np.zeros(2, np.int64)
        bias = np.empty(self._rows * UNIT.padded(cache.shape.rows), np.float32)
        window[0], segment[0, BIASES] = bias.ctypes.data, window.ctypes.data
        self._segment = segment
        self._logits = torch.empty(self._rows * vocabulary_size + UNIT.lanes)
        self._records = Records(
            entries=entries,
            stack=np.zeros(len(STACK_FIELDS), np.int64),
            choice=np.zeros(0, np.int64),
            numbers=np.empty((3, self._rows), np.int64),
            segment=segment[0],
            window=window,
            bias=bias,
            said=np.zeros(0),
            scores=np.empty((self._rows, UNIT.padded(vocabulary_size)), np.float32),
            noise=self._silent,
            times=np.zeros((MOST_FORWARDS, 3), np.int64),
        )
        self._count, self._moves = 0, -1

    def takes(self, forward: Forward) -> bool:
        """Whether `forward` may be asked for this: a round's, of which logits are wanted."""
        rows = len(forward.committed_token_ids)
        return forward.rows <= self._rows and forward.logits_from == max(rows - 1, 0)

    def forward(self, forward: Forward) -> Tensor:
        """The logits, float32 [rows, vocabulary]; stores keys and values."""
        slot, length, first = forward.slot, forward.slot.length, forward.slot.pending
        assert forward.rows <= slot.room(), "the caller checks that the draft fits the context"
        tail = np.array(forward.committed_token_ids, np.int64)
        slot.append(len(tail))
        slot.branch(forward.node_token_ids, forward.node_parents)
        values = (forward.rows - forward.logits_from) * self._vocabulary_size
        logits = torch.empty(values + self._records.entries[LANES])
        self._prepare_stack(slot, logits)
        layout.run(self._records, slot.rows, first, slot.pending, tail, length)
        return logits[:values].view(-1, self._vocabulary_size)

    def records(
        self, slot: Slot, count: int, temperature: float, noise: Sequence[Tensor]
    ) -> Records:
        """For forwards of a slot, and the best `count` tokens after each of their rows.

        `noise`: of every position from the one behind the committed text on, none at all where
        nothing is drawn. Good until the next call, as long as the noise is kept.
        """
        self._prepare_stack(slot, self._logits)
        self._prepare_choice(count, temperature if noise else 1.0)
        drawn = np.array([row.data_ptr() for row in noise]) if noise else self._silent
        return self._records._replace(noise=drawn)

    def _prepare_stack(self, slot: Slot, logits: Tensor) -> None:
        known, rows = self._records, self._rows
        if self._stack.moves != self._moves:
            places = [row.ctypes.data for row in known.numbers]
            known.stack[:] = self._stack.call(self._cache, rows, self._segment, places, rows, 0)
            self._moves = self._stack.moves
        known.stack[LOGITS] = logits.data_ptr()
        known.segment[SLOT] = slot.index

    def _prepare_choice(self, count: int, temperature: float) -> None:
        if count != self._count:
            self._count = count
            rows, vocabulary = self._rows, self._vocabulary_size
            said, scores = np.empty(rows * (2 * count + 1)), torch.from_numpy(self._records.scores)
            logits = self._logits[: rows * vocabulary].view(rows, vocabulary)
            packed = cpu_choice.call(
                logits, scores, said.ctypes.data, [self._silence] * rows, 1.0, count
            )
            choice = np.frombuffer(packed, np.int64).copy()
            self._records = self._records._replace(choice=choice, said=said)
        self._records.choice.view(np.float64)[TEMPERATURE] = temperature
