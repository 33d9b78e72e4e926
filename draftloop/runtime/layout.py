"""Compiled: lays out a forward of one session in the records of `prepared` and runs it."""

from __future__ import annotations

import numpy as np

from draftloop.runtime.compiling import compiled
from draftloop.runtime.cpu_choice_kernel import CALL_FIELDS as CHOICE
from draftloop.runtime.cpu_stack_kernel import CALL_FIELDS as STACK
from draftloop.runtime.cpu_stack_kernel import SEGMENT_FIELDS as SEGMENT
from draftloop.runtime.cutting import apply_cuts
from draftloop.runtime.native import call, nanoseconds
from draftloop.runtime.records import CHOICE_ENTRY, LANES, STACK_ENTRY, Records, Whole
from draftloop.runtime.slot_rows import DEPTH, PARENT, TOKEN
from draftloop.tree import ROOT

ID, POSITION, CHOSEN = 0, 1, 2  # rows of `Records.numbers`
# Indices, in the kernels' records, of the fields that change from forward to forward.
STACK_ROWS, STACK_CHOSEN = STACK.index("rows"), STACK.index("chosen_count")
CHOICE_ROWS, CHOICE_NOISE = CHOICE.index("rows"), len(CHOICE)
SEGMENT_ROWS = SEGMENT.index("rows")
SEGMENT_FROM, SEGMENT_TO = SEGMENT.index("stored_from"), SEGMENT.index("stored_to")


@compiled
def run(records: Records, rows: Whole, first: int, stop: int, tail: Whole, length: int) -> int:
    """Runs a forward over `tail`, committed tokens after `length` others, then over pending rows.

    These are `rows` (`slot_rows`) from `first` to `stop`; with a tail, `first` is 0. Computes the
    logits of the tail's last row and of all pending rows; returns their number.
    """
    lay_out(records, rows, first, stop, tail, length)
    call(records.entries[STACK_ENTRY], records.stack.ctypes.data)
    return int(records.stack[STACK_CHOSEN])


@compiled
def lay_out(records: Records, rows: Whole, first: int, stop: int, tail: Whole, length: int) -> None:
    """Fills in the records for `run`, without calling the kernel."""
    numbers, segment = records.numbers, records.segment
    count, committed = 0, length + len(tail)
    for token in tail:
        numbers[ID, count], numbers[POSITION, count] = token, length + count
        count += 1
    for row in range(first, stop):
        numbers[ID, count] = rows[TOKEN, row]
        numbers[POSITION, count] = committed - 1 + rows[DEPTH, row]
        count += 1
    start = max(len(tail) - 1, 0)
    for place in range(start, count):
        numbers[CHOSEN, place - start] = place
    records.stack[STACK_ROWS], records.stack[STACK_CHOSEN] = count, count - start
    stored = committed + first if first or not len(tail) else length
    segment[SEGMENT_ROWS] = count
    segment[SEGMENT_FROM], segment[SEGMENT_TO] = stored, stored + count
    fill_bias(records, rows, first, stop, len(tail), committed)


@compiled
def fill_bias(
    records: Records, rows: Whole, first: int, stop: int, tail: int, committed: int
) -> None:
    """Fills in the bias: a row attends to the text before it, its ancestors and itself."""
    lanes = records.entries[LANES]
    width = (records.segment[SEGMENT_TO] + lanes - 1) // lanes * lanes
    records.window[1] = width
    bias, start = records.bias, 0
    for place in range(tail):
        seen = start + committed - tail + place + 1
        bias[start:seen] = 0.0
        bias[seen : start + width] = -np.inf
        start += width
    for row in range(first, stop):
        bias[start : start + committed] = 0.0
        bias[start + committed : start + width] = -np.inf
        seen = row
        while seen != ROOT:
            bias[start + committed + seen] = 0.0
            seen = rows[PARENT, seen]
        start += width


@compiled
def run_and_choose(
    records: Records, likeliest: Whole, rows: Whole, stop: int, tail: Whole, length: int
) -> int:
    """`run` over the tail and the rows before `stop`, then chooses the best tokens of each row.

    `likeliest`: a second record for choosing from the same logits, or an empty one. Writes the
    forward's nanoseconds to the first entry of `times`. Returns the number of rows of logits.
    """
    began = nanoseconds()
    chosen = run(records, rows, 0, stop, tail, length)
    records.times[0, 2] = nanoseconds() - began
    if len(likeliest):  # from all tokens, before the filters exclude some
        likeliest[CHOICE_ROWS] = chosen
        call(records.entries[CHOICE_ENTRY], likeliest.ctypes.data)
    depths = np.zeros(chosen, np.int64)
    for row in range(stop):
        depths[row + 1] = rows[DEPTH, row]
    choose(records, chosen, depths)
    return chosen


@compiled
def choose(records: Records, chosen: int, depths: Whole) -> None:
    """Chooses the best tokens of the first `chosen` rows of logits, by noise at their depths."""
    if len(records.cuts):
        apply_cuts(records.logits[:chosen], records.cuts, records.scratch)
    records.choice[CHOICE_ROWS] = chosen
    for place in range(chosen):
        records.choice[CHOICE_NOISE + place] = records.noise[depths[place]]
    call(records.entries[CHOICE_ENTRY], records.choice.ctypes.data)
