"""Forwards of one session that compiled code lays out and runs by itself, several in sequence.

Inputs and outputs are arrays at fixed addresses. Records with these addresses are passed to
`cpu_stack_kernel` and `cpu_choice_kernel`. If torch and numpy laid out each forward, a small draft
model would spend more time in Python than in its forwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from draftloop.runtime import cpu_choice
from draftloop.runtime.cpu_linear import UNIT
from draftloop.runtime.cpu_stack import CpuStack
from draftloop.runtime.cutting import NO_CUTS, Cuts, scratch
from draftloop.runtime.forward import Forward
from draftloop.runtime.kv_cache import KVCache, Slot
from draftloop.runtime.records import LANES, Floats, Records, Whole
from draftloop.runtime.step import ROUND_TOKENS

if TYPE_CHECKING:
    from draftloop.runtime.model import LanguageModel

if UNIT is not None:
    from draftloop.runtime import layout
    from draftloop.runtime.cpu_choice_kernel import CALL_FIELDS, CHOSEN, RANKED, WEIGHED
    from draftloop.runtime.cpu_stack_kernel import CALL_FIELDS as STACK_FIELDS
    from draftloop.runtime.cpu_stack_kernel import SEGMENT_FIELDS

    TEMPERATURE, LOGITS = CALL_FIELDS.index("temperature"), STACK_FIELDS.index("logits")
    SLOT, BIASES = SEGMENT_FIELDS.index("slot"), SEGMENT_FIELDS.index("biases")

MAX_FORWARDS = 64  # in sequence


class Pass(NamedTuple):
    """A forward that was run: number of rows, of draft nodes among them, and its time.

    `prompt_rows` of the rows belong to prompts, of `prompts` sessions.
    """

    rows: int
    nodes: int
    nanoseconds: int
    prompt_rows: int = 0
    prompts: int = 0

    def prompts_share(self, nanoseconds: int, own_rows: int = 0) -> int:
        """The part of `nanoseconds` spent on prompts; `own_rows`: the caller's own prompt rows."""
        return nanoseconds * (self.prompt_rows - own_rows) // max(self.rows, 1)


@dataclass(slots=True)
class Passes:
    """A wish for the engine: several forwards of one session, run in one call of `run`."""

    model: LanguageModel
    slot: Slot
    run: Callable[[], Sequence[Pass]]


class ChoiceSettings(NamedTuple):
    """How a verification chooses tokens.

    `successors`: number of likeliest tokens returned for every row. `cuts`: the filters' parameters
    (`cutting.Cuts`).
    """

    temperature: float
    successors: int
    cuts: Cuts = NO_CUTS


class Chosen(NamedTuple):
    """The target's token after every row, and the likeliest tokens of all rows, concatenated.

    `is_finite`: whether the scores of all chosen tokens are finite, so that their logits are, too.
    """

    token_ids: list[int]
    successor_ids: list[int]
    is_finite: bool
    forward: Pass


class Choice(NamedTuple):
    """A record of `cpu_choice_kernel`, and the array that it writes its results to.

    `temperature`: the record's field for it, a view of one number.
    """

    record: Whole
    temperature: Floats
    results: Floats


NO_CHOICE = Choice(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


class Prepared:
    """The arrays of one model; used from its engine's thread, by one session at a time.

    `max_nodes`: maximum nodes of a draft. A forward may have that many rows and ROUND_TOKENS more.
    """

    def __init__(
        self, stack: CpuStack, cache: KVCache, vocabulary_size: int, max_nodes: int
    ) -> None:
        assert UNIT is not None, "a stack has kernels"
        self._stack, self._cache = stack, cache
        self._vocabulary_size = vocabulary_size
        self.max_rows = max_nodes + ROUND_TOKENS
        self._zero_noise = cpu_choice.zero_noise(vocabulary_size)
        self._zero_noise_rows = np.full(cache.shape.rows, self._zero_noise.data_ptr())
        entries = np.array([stack.entry, cpu_choice.entry(), UNIT.lanes], np.int64)
        segment, window = np.zeros((1, len(SEGMENT_FIELDS)), np.int64), np.zeros(2, np.int64)
        bias = np.empty(self.max_rows * UNIT.padded(cache.shape.rows), np.float32)
        window[0], segment[0, BIASES] = bias.ctypes.data, window.ctypes.data
        self._segment = segment
        logits = torch.empty(self.max_rows * vocabulary_size + UNIT.lanes)
        # [max_rows, vocabulary]; the last verification's come first, unless it filtered some
        self.logits = logits[: self.max_rows * vocabulary_size].view(-1, vocabulary_size)
        self._records = Records(
            entries=entries,
            stack=np.zeros(len(STACK_FIELDS), np.int64),
            choice=np.zeros(0, np.int64),
            numbers=np.empty((3, self.max_rows), np.int64),
            segment=segment[0],
            window=window,
            bias=bias,
            results=np.zeros(0),
            scores=np.empty((self.max_rows, UNIT.padded(vocabulary_size)), np.float32),
            noise=self._zero_noise_rows,
            times=np.zeros((MAX_FORWARDS, 3), np.int64),
            logits=self.logits.numpy(),
            cuts=NO_CUTS,
            scratch=scratch(vocabulary_size),
        )
        self._choices: dict[tuple[int, int], Choice] = {}
        self._moves = -1

    def can_run(self, forward: Forward) -> bool:
        """Whether `forward` can be run here: it is small enough, and wants the usual logits.

        These are the logits of the last committed token and of every node.
        """
        rows = len(forward.committed_token_ids)
        return forward.rows <= self.max_rows and forward.logits_from == max(rows - 1, 0)

    def forward(self, forward: Forward) -> Tensor:
        """Runs a forward; returns its logits, float32 [rows, vocabulary]."""
        slot, length, first = forward.slot, forward.slot.length, forward.slot.pending
        tail = self._reserve_rows(forward)
        values = (forward.rows - forward.logits_from) * self._vocabulary_size
        logits = torch.empty(values + self._records.entries[LANES])
        self._prepare_stack(slot, logits)
        layout.run(self._records, slot.rows, first, slot.pending, tail, length)
        return logits[:values].view(-1, self._vocabulary_size)

    def verify(self, forward: Forward, noise: Sequence[Tensor], settings: ChoiceSettings) -> Chosen:
        """Runs a forward over committed tokens and a draft; chooses the target's token of each row.

        `noise`: as for `records`, down to the draft's depth. The first row is that of the last
        committed token.
        """
        slot, length = forward.slot, forward.slot.length
        tail = self._reserve_rows(forward)
        successors = min(settings.successors, self._vocabulary_size)
        # Without noise and filters, the chosen token is the first of the successors.
        first_is_chosen = not len(noise) and not len(settings.cuts)
        count = max(1, successors) if first_is_chosen else 1
        records = self.records(slot, count, settings.temperature, noise, settings.cuts)
        ranking = (
            NO_CHOICE if first_is_chosen or not successors else self._choice(successors, RANKED)
        )
        chosen = layout.run_and_choose(
            records, ranking.record, slot.rows, slot.pending, tail, length
        )
        table, width = _table(records.results, chosen, count), 2 * count + 1
        likeliest = table if first_is_chosen else _table(ranking.results, chosen, successors)
        return Chosen(
            token_ids=[int(token) for token in table[::width]],
            successor_ids=_tokens(likeliest, successors),
            is_finite=all(map(math.isfinite, table[count::width])),
            forward=Pass(forward.rows, len(forward.node_token_ids), int(records.times[0, 2])),
        )

    def _reserve_rows(self, forward: Forward) -> Whole:
        """Reserves a forward's rows in its slot; returns its committed tokens."""
        slot = forward.slot
        assert forward.rows <= slot.room(), "the caller checks that the draft fits the context"
        slot.append(len(forward.committed_token_ids))
        slot.branch(forward.node_token_ids, forward.node_parents)
        return np.array(forward.committed_token_ids, np.int64)

    def records(
        self,
        slot: Slot,
        count: int,
        temperature: float,
        noise: Sequence[Tensor],
        cuts: Cuts,
        *,
        weighed: bool = False,
    ) -> Records:
        """Records for forwards of a slot that also choose the best `count` tokens of each row.

        `cuts`: the filters' parameters. `noise`: one row for every position after the committed
        text, or none if greedy. `weighed`: also return what shares of any token are computed from.
        Valid until the next call; the caller must keep the noise alive.
        """
        self._prepare_stack(slot, self.logits)
        choice = self._choice(count, WEIGHED if weighed else CHOSEN if noise else RANKED)
        choice.temperature[0] = temperature if noise else 1.0
        drawn = np.array([row.data_ptr() for row in noise]) if noise else self._zero_noise_rows
        return self._records._replace(
            noise=drawn, choice=choice.record, results=choice.results, cuts=cuts
        )

    def _prepare_stack(self, slot: Slot, logits: Tensor) -> None:
        known, rows = self._records, self.max_rows
        if self._stack.moves != self._moves:
            places = [row.ctypes.data for row in known.numbers]
            known.stack[:] = self._stack.call(self._cache, rows, self._segment, places, rows, 0)
            self._moves = self._stack.moves
        known.stack[LOGITS] = logits.data_ptr()
        known.segment[SLOT] = slot.index

    def _choice(self, count: int, mode: int) -> Choice:
        """The record for the best `count` tokens; temperature and noise are filled in later."""
        if (count, mode) not in self._choices:
            rows = self.max_rows
            results, scores = (
                np.empty(rows * (2 * count + 1)),
                torch.from_numpy(self._records.scores),
            )
            packed = cpu_choice.call(
                self.logits, scores, results.ctypes.data, [self._zero_noise] * rows, 1.0,
                count, mode,
            )  # fmt: skip
            record = np.frombuffer(packed, np.int64).copy()
            field = record.view(np.float64)[TEMPERATURE : TEMPERATURE + 1]
            self._choices[count, mode] = Choice(record, field, results)
        return self._choices[count, mode]


def _table(results: Floats, rows: int, count: int) -> list[float]:
    """The kernel's results, concatenated: 2 x count + 1 numbers for each row."""
    # A list, as few numbers are read: after a forward, each call of numpy takes 20 microseconds.
    table: list[float] = results[: rows * (2 * count + 1)].tolist()
    return table


def _tokens(table: Sequence[float], count: int) -> list[int]:
    """The `count` best tokens of every row of a table, concatenated."""
    rows = range(0, len(table), 2 * count + 1)
    return [int(token) for row in rows for token in table[row : row + count]]
