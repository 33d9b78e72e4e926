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

MOST_FORWARDS = 64  # in a row


class Pass(NamedTuple):
    """A forward that was run: its rows, those of them that are draft nodes, and its time.

    `prompt_rows` are those of the `prompts` of so many sessions.
    """

    rows: int
    nodes: int
    nanoseconds: int
    prompt_rows: int = 0
    prompts: int = 0

    def prompts_part(self, nanoseconds: int, besides: int = 0) -> int:
        """Of so much time that it took from somebody, that of prompts, his own rows apart."""
        return nanoseconds * (self.prompt_rows - besides) // max(self.rows, 1)


@dataclass(slots=True)
class Passes:
    """A wish of the engine's: forwards of one session, run in one call until it is done."""

    model: LanguageModel
    slot: Slot
    run: Callable[[], Sequence[Pass]]


class Wanted(NamedTuple):
    """What a verification asks for: at a temperature, and likeliest `successors` of every row.

    `cuts`: what is cut off before.
    """

    temperature: float
    successors: int
    cuts: Cuts = NO_CUTS


class Chosen(NamedTuple):
    """The target's token after every row, and all rows' likeliest ones."""

    token_ids: list[int]
    successor_ids: list[int]
    forward: Pass


class Choice(NamedTuple):
    """A record of `cpu_choice_kernel`, and where it writes what it tells."""

    record: Whole
    said: Floats


NOTHING = Choice(np.zeros(0, np.int64), np.zeros(0))


class Prepared:
    """The arrays of one model; used from its engine's thread, by one session at a time.

    `most_nodes`: of a draft. A forward may have so many rows, and the tokens of a round.
    """

    def __init__(
        self, stack: CpuStack, cache: KVCache, vocabulary_size: int, most_nodes: int
    ) -> None:
        assert UNIT is not None, "a stack has kernels"
        self._stack, self._cache = stack, cache
        self._vocabulary_size = vocabulary_size
        self.most_rows = most_nodes + ROUND_TOKENS
        self._silence = cpu_choice.silence(vocabulary_size)
        self._silent = np.full(cache.shape.rows, self._silence.data_ptr())
        entries = np.array([stack.entry, cpu_choice.entry(), UNIT.lanes], np.int64)
        segment, window = np.zeros((1, len(SEGMENT_FIELDS)), np.int64), np.zeros(2, np.int64)
        bias = np.empty(self.most_rows * UNIT.padded(cache.shape.rows), np.float32)
        window[0], segment[0, BIASES] = bias.ctypes.data, window.ctypes.data
        self._segment = segment
        self._logits = torch.empty(self.most_rows * vocabulary_size + UNIT.lanes)
        self._records = Records(
            entries=entries,
            stack=np.zeros(len(STACK_FIELDS), np.int64),
            choice=np.zeros(0, np.int64),
            numbers=np.empty((3, self.most_rows), np.int64),
            segment=segment[0],
            window=window,
            bias=bias,
            said=np.zeros(0),
            scores=np.empty((self.most_rows, UNIT.padded(vocabulary_size)), np.float32),
            noise=self._silent,
            times=np.zeros((MOST_FORWARDS, 3), np.int64),
            logits=self.logits(self.most_rows).numpy(),
            cuts=NO_CUTS,
            scratch=scratch(vocabulary_size),
        )
        self._choices: dict[tuple[int, int], Choice] = {}
        self._moves = -1

    def takes(self, forward: Forward) -> bool:
        """Whether `forward` may be asked for this: a round's, of which logits are wanted."""
        rows = len(forward.committed_token_ids)
        return forward.rows <= self.most_rows and forward.logits_from == max(rows - 1, 0)

    def forward(self, forward: Forward) -> Tensor:
        """The logits, float32 [rows, vocabulary]; stores keys and values."""
        slot, length, first = forward.slot, forward.slot.length, forward.slot.pending
        tail = self._entered(forward)
        values = (forward.rows - forward.logits_from) * self._vocabulary_size
        logits = torch.empty(values + self._records.entries[LANES])
        self._prepare_stack(slot, logits)
        layout.run(self._records, slot.rows, first, slot.pending, tail, length)
        return logits[:values].view(-1, self._vocabulary_size)

    def verify(self, forward: Forward, noise: Sequence[Tensor], wanted: Wanted) -> Chosen:
        """A forward over committed tokens and a draft, and the target's tokens after each row.

        `noise`: as for `records`, down to the draft's depth. The forward's first row of logits is
        that of its last committed token.
        """
        slot, length = forward.slot, forward.slot.length
        tail = self._entered(forward)
        successors = min(wanted.successors, self._vocabulary_size)
        # Where nothing is drawn or cut off, the likeliest token is the first of the successors.
        as_said = not len(noise) and not len(wanted.cuts)
        told = max(1, successors) if as_said else 1
        records = self.records(slot, told, wanted.temperature, noise, wanted.cuts)
        apart = NOTHING if as_said or not successors else self._choice(successors, RANKED)
        chosen = layout.run_and_choose(records, apart.record, slot.rows, slot.pending, tail, length)
        likeliest = records.said if as_said else apart.said
        rows, nodes = forward.rows, len(forward.node_token_ids)
        return Chosen(
            token_ids=_tokens(records.said, chosen, told)[::told],
            successor_ids=_tokens(likeliest, chosen, successors),
            forward=Pass(rows, nodes, int(records.times[0, 2])),
        )

    def logits(self, rows: int) -> Tensor:
        """[rows, vocabulary]: of a verification that cuts nothing off, until the next one."""
        return self._logits[: rows * self._vocabulary_size].view(rows, self._vocabulary_size)

    def _entered(self, forward: Forward) -> Whole:
        """Counts a forward's rows into its slot; its committed tokens."""
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
        """For forwards of a slot, and the best `count` tokens after each of their rows.

        `cuts`: what is cut off before. `noise`: of every position from the one behind the
        committed text on, none at all where nothing is drawn. `weighed`: what shares of all tokens
        follow from is told as well. Good until the next call, as long as the noise is kept.
        """
        self._prepare_stack(slot, self._logits)
        choice = self._choice(count, WEIGHED if weighed else CHOSEN if noise else RANKED)
        choice.record.view(np.float64)[TEMPERATURE] = temperature if noise else 1.0
        drawn = np.array([row.data_ptr() for row in noise]) if noise else self._silent
        return self._records._replace(
            noise=drawn, choice=choice.record, said=choice.said, cuts=cuts
        )

    def _prepare_stack(self, slot: Slot, logits: Tensor) -> None:
        known, rows = self._records, self.most_rows
        if self._stack.moves != self._moves:
            places = [row.ctypes.data for row in known.numbers]
            known.stack[:] = self._stack.call(self._cache, rows, self._segment, places, rows, 0)
            self._moves = self._stack.moves
        known.stack[LOGITS] = logits.data_ptr()
        known.segment[SLOT] = slot.index

    def _choice(self, count: int, asked: int) -> Choice:
        """For the best `count` tokens; temperature and noise are none until they are filled in."""
        if (count, asked) not in self._choices:
            rows = self.most_rows
            said, scores = np.empty(rows * (2 * count + 1)), torch.from_numpy(self._records.scores)
            packed = cpu_choice.call(
                self.logits(rows), scores, said.ctypes.data, [self._silence] * rows, 1.0, count,
                asked,
            )  # fmt: skip
            self._choices[count, asked] = Choice(np.frombuffer(packed, np.int64).copy(), said)
        return self._choices[count, asked]


def _tokens(said: Floats, rows: int, count: int) -> list[int]:
    """The best tokens of so many rows, one row's behind the other's."""
    if not count:
        return []
    width = 2 * count + 1
    told = said[: rows * width].reshape(rows, width)[:, :count]
    token_ids: list[int] = told.astype(np.int64).ravel().tolist()
    return token_ids
