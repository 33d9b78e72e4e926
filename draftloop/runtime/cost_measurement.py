"""Measures the cost of a model's forwards at startup, which also warms up the model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from draftloop.model_info import CostPoint
from draftloop.runtime.forward import Forward
from draftloop.runtime.kv_cache import Slot

if TYPE_CHECKING:
    from draftloop.runtime.model import LanguageModel

# Processors multiply tiles of 16 rows. The largest sizes stand for rounds of many sessions.
TOKENS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 17, 24, 32, 64, 128)
CONTEXT = 128
FEW_TOKENS = (1, 8)
LONG_CONTEXTS = (512, 1024)
BATCHES = (2, 4)
# The minimum for a curve: measured however long they take.
ESSENTIAL_TOKENS = (1, 8, 32)
# Forwards per point: as many as fit in POINT_NS, within these limits.
MIN_REPEATS, REPEATS = 3, 5
POINT_NS = 60_000_000
# Points that are not essential are skipped once measuring has taken this long.
TOTAL_NS = 4_000_000_000

Place = tuple[int, int, int]
"""Sessions, tokens that each holds, new tokens of each: the order of the curve's points."""


def measure(model: LanguageModel) -> tuple[CostPoint, ...]:
    """Times forwards by new tokens, context and sessions, within the model's limits.

    If forwards are slow, there are fewer repeats, and points are left out: first batches, then long
    contexts, then intermediate sizes. The first point is one token of one session at the usual
    context. Leaves the cache as it was. On the engine's thread; with few free slots, only smaller
    batches are measured.
    """
    slots = [model.acquire() for _ in range(min(max(BATCHES), model.cache.free_slots))]
    times: dict[Place, int] = {}
    try:
        warm_up(model, slots)
        started = time.perf_counter_ns()
        for place in _grid(model, len(slots)):
            late = time.perf_counter_ns() - started > TOTAL_NS
            if not late or _is_essential(place):
                times[place] = _measure(model, slots, place)
    finally:
        for slot in slots:
            model.cache.release(slot)
    return tuple(
        CostPoint(tokens, nanoseconds, context, batch)
        for (batch, context, tokens), nanoseconds in sorted(times.items())
    )


def warm_up(model: LanguageModel, slots: list[Slot]) -> None:
    """Runs every kernel once, and fills all slots with a real row as context of any length.

    Kernels for decoding and for prefill are compiled at first use.
    """
    rows = min(max(TOKENS), max(1, model.context_length // 2))
    model.forward([Forward(model, slots[0], [0] * rows)])
    for tensor in (*model.cache.keys, *model.cache.values):
        row = tensor[slots[0].index, :, :1].clone()
        for slot in slots:
            # A real prefill would take most of the startup; attention is as fast over equal rows.
            tensor[slot.index, :, : _longest(model)] = row
    model.forward([Forward(model, slots[0], [0])])


def _grid(model: LanguageModel, sessions: int) -> Iterator[Place]:
    """All places to measure, the most important first."""
    context = _usual_context(model)
    fitting = [tokens for tokens in TOKENS if tokens <= _room(model, context)]
    first = [tokens for tokens in fitting if tokens in ESSENTIAL_TOKENS]
    yield from ((1, context, tokens) for tokens in first)
    yield from ((1, context, tokens) for tokens in fitting if tokens not in first)
    few = [tokens for tokens in FEW_TOKENS if tokens in fitting]
    yield from (
        (1, longer, tokens)
        for longer in LONG_CONTEXTS
        if longer <= _longest(model) and longer > context
        for tokens in few
    )
    batches = [batch for batch in BATCHES if batch <= sessions]
    yield from ((batch, context, tokens) for batch in batches for tokens in few)


def _is_essential(place: Place) -> bool:
    batch, context, tokens = place
    return batch == 1 and context <= CONTEXT and tokens in ESSENTIAL_TOKENS


def _usual_context(model: LanguageModel) -> int:
    return min(CONTEXT, model.context_length // 2)


def _longest(model: LanguageModel) -> int:
    """The longest context that is measured."""
    most = model.context_length - max(FEW_TOKENS)
    return max([_usual_context(model), *(longer for longer in LONG_CONTEXTS if longer <= most)])


def _room(model: LanguageModel, context: int) -> int:
    return model.context_length - context  # models with learned positions have no others


def _measure(model: LanguageModel, slots: list[Slot], place: Place) -> int:
    batch, context, tokens = place
    chosen = slots[:batch]

    def once() -> None:
        for slot in chosen:
            slot.length = context
        model.forward([Forward(model, slot, [0] * tokens) for slot in chosen])

    return typical_ns(once)


def typical_ns(function: Callable[[], None]) -> int:
    """Median time of the calls that fit in POINT_NS, not counting a first one.

    There are at least MIN_REPEATS, so that one slow call, due to other programs, does not spoil
    the curve.
    """
    first = _timed(function)
    repeats = min(REPEATS, max(MIN_REPEATS, POINT_NS // max(first, 1)))
    return int(statistics.median(_timed(function) for _ in range(repeats)))


def _timed(function: Callable[[], None]) -> int:
    started = time.perf_counter_ns()
    function()
    return time.perf_counter_ns() - started
