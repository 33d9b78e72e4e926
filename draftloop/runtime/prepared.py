"""Forwards of one session that compiled code lays out and runs by itself, several in a row.

What a forward is told and what it says are arrays at fixed places; records that name them go to
`cpu_stack_kernel` and `cpu_choice_kernel`. Who fills them in between decides what is run next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftloop.runtime import cpu_choice
from draftloop.runtime.cpu_linear import UNIT
from draftloop.runtime.cpu_stack import CpuStack
from draftloop.runtime.kv_cache import KVCache, Slot

if TYPE_CHECKING:
    from draftloop.runtime.model import LanguageModel

if UNIT is not None:
    from draftloop.runtime.cpu_choice_kernel import CALL_FIELDS
    from draftloop.runtime.cpu_stack_kernel import SEGMENT_FIELDS

    TEMPERATURE = CALL_FIELDS.index("temperature")
    SLOT, BIASES = SEGMENT_FIELDS.index("slot"), SEGMENT_FIELDS.index("biases")

Whole = npt.NDArray[np.int64]
MOST_FORWARDS = 64  # in a row


class Records(NamedTuple):
    """What one forward needs, and the choice of tokens behind it.

    stack, choice: the kernels' records, by addresses and sizes; entries: the addresses of the two
    kernels. numbers: [3, rows], tokens, positions and rows whose logits are chosen from. segment:
    see `cpu_stack_kernel`; window: the address of `bias` and its rows' length. bias: room for
    [rows, stored], 0 where a row sees a key, else -inf. said: float64 [rows, 2 x count + 1], see
    `cpu_choice_kernel`. scores: float32 [rows, width]. noise: addresses of the noise of positions,
    from the one behind the committed text on. times: [forwards, 3], see `Pass`.
    """

    entries: Whole
    stack: Whole
    choice: Whole
    numbers: Whole
    segment: Whole
    window: Whole
    bias: npt.NDArray[np.float32]
    said: npt.NDArray[np.float64]
    scores: npt.NDArray[np.float32]
    noise: Whole
    times: Whole


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
    """The arrays of one model; used from its engine's thread, by one session at a time."""

    def __init__(self, stack: CpuStack, cache: KVCache, vocabulary_size: int) -> None:
        assert UNIT is not None, "a stack has kernels"
        self._stack, self._cache = stack, cache
        self._vocabulary_size = vocabulary_size
        self._silence = cpu_choice.silence(vocabulary_size)
        self._silent = np.full(cache.shape.rows, self._silence.data_ptr())
        self._entries = np.array([stack.entry, cpu_choice.entry(), UNIT.lanes], np.int64)
        self._segment = np.zeros((1, len(SEGMENT_FIELDS)), np.int64)
        self._window = np.zeros(2, np.int64)
        self._times = np.zeros((MOST_FORWARDS, 3), np.int64)
        self._rows = self._count = 0
        self._moves = -1

    def records(
        self, slot: Slot, rows: int, count: int, temperature: float, noise: Sequence[Tensor]
    ) -> Records:
        """For forwards of up to `rows` rows of a slot, and the best `count` tokens after each.

        `noise`: of every position from the one behind the committed text on, none at all where
        nothing is drawn. Good until the next call, as long as the noise is kept.
        """
        if rows > self._rows:
            self._make_room(rows)
        count = min(count, self._vocabulary_size)
        if count != self._count:
            self._prepare_choice(count)
        self._choice.view(np.float64)[TEMPERATURE] = temperature if noise else 1.0
        self._segment[0, SLOT] = slot.index
        if self._stack.moves != self._moves:
            self._prepare_stack()
        drawn = np.array([row.data_ptr() for row in noise]) if noise else self._silent
        return Records(
            self._entries, self._call, self._choice, self._numbers, self._segment[0], self._window,
            self._bias, self._said, self._scores, drawn, self._times,
        )  # fmt: skip

    def _make_room(self, rows: int) -> None:
        assert UNIT is not None
        self._rows, self._count, self._moves = rows, 0, -1
        self._numbers = np.empty((3, rows), np.int64)
        self._places = [row.ctypes.data for row in self._numbers]
        self._bias = np.empty(rows * UNIT.padded(self._cache.shape.rows), np.float32)
        self._window[0] = self._bias.ctypes.data
        self._segment[0, BIASES] = self._window.ctypes.data
        values = rows * self._vocabulary_size
        self._logits = torch.empty(values + UNIT.lanes)[:values].view(rows, -1)
        self._scores = np.empty((rows, UNIT.padded(self._vocabulary_size)), np.float32)

    def _prepare_stack(self) -> None:
        rows = self._rows
        self._call = self._stack.call(
            self._cache, rows, self._segment, self._places, rows, self._logits.data_ptr()
        ).copy()
        self._moves = self._stack.moves

    def _prepare_choice(self, count: int) -> None:
        self._count = count
        self._said = np.empty(self._rows * (2 * count + 1))
        choice = cpu_choice.call(
            self._logits, torch.from_numpy(self._scores), self._said.ctypes.data,
            [self._silence] * self._rows, 1.0, count,
        )  # fmt: skip
        self._choice = np.frombuffer(choice, np.int64).copy()
