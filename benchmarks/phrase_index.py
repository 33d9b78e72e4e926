"""`python -m benchmarks.phrase_index`: times of look-ups and inserts, a million tokens known."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from draftloop.calibration import Calibration
from draftloop.phrase import MAX_CONTEXT, Phrase
from draftloop.tree import DraftBudget
from phrase_store.index import PhraseIndex, grow, warm_up
from phrase_store.session import BYTES_PER_TOKEN

TOKENS = 1_000_000
VOCABULARY = 4096
INDEX_BYTES = 256 << 20
OWN_TOKENS = 4096  # of a request, including its answer
REPEATS = 2000


def zipf_text(count: int, seed: int) -> list[int]:
    """Tokens with the frequencies of text, in runs that recur as they do in code."""
    random = np.random.default_rng(seed)
    runs = [(random.zipf(1.3, 24) % VOCABULARY).tolist() for _ in range(2000)]
    text: list[int] = []
    while len(text) < count:
        run = runs[int(random.zipf(1.2)) % len(runs)]
        start, length = random.integers(0, 12), random.integers(4, 12)
        text += run[start : start + length]
    return text[:count]


def microseconds(function: Callable[[int], object], repeats: int = REPEATS) -> tuple[float, float]:
    """Median and 95th percentile of a call's time."""
    times = []
    for number in range(repeats):
        began = time.perf_counter_ns()
        function(number)
        times.append((time.perf_counter_ns() - began) / 1000)
    times.sort()
    return statistics.median(times), times[int(0.95 * repeats)]


def indexed(text: list[int]) -> tuple[PhraseIndex, float]:
    """An index of all of `text`, and the seconds that indexing took."""
    index = PhraseIndex(max_bytes=INDEX_BYTES, grows=True)
    began = time.perf_counter()
    for start in range(0, TOKENS, 4096):
        index.extend(text[max(0, start - MAX_CONTEXT) : start], text[start : start + 4096])
    return index, time.perf_counter() - began


def new_own(text: Sequence[int] = ()) -> PhraseIndex:
    """The index of a request's own text."""
    own = PhraseIndex(max_bytes=OWN_TOKENS * BYTES_PER_TOKEN)
    own.extend((), text)
    return own


def main() -> None:
    """Prints the table."""
    console = Console()
    console.print(f"indexing {TOKENS:,} tokens …")
    warm_up()
    text = zipf_text(TOKENS, seed=1)
    shared, inserting_s = indexed(text)
    own = new_own(text[5000 : 5000 + OWN_TOKENS])
    calibration = Calibration()
    drafted: list[int] = []

    def look_up(nodes: int) -> Callable[[int], None]:
        budget = DraftBudget(max_nodes=nodes, max_depth=nodes)

        def once(number: int) -> None:
            start = number * 397 % (TOKENS - MAX_CONTEXT)
            context = text[start : start + MAX_CONTEXT]
            made = grow(context, budget, shared=shared, own=own, calibration=calibration)
            drafted.append(len(made.tree))

        return once

    table = Table(title=f"phrase index, {shared.entries:,} continuations known")
    for column in ("call", "median", "95 %"):
        table.add_column(column, justify="left" if column == "call" else "right")
    for name, repeats, call in (
        ("draft of 16 nodes", REPEATS, look_up(16)),
        ("draft of 32 nodes", REPEATS, look_up(32)),
        ("own index made", REPEATS, lambda n: new_own()),
        (f"own index of {OWN_TOKENS:,} tokens made", 100,
         lambda n: new_own(text[n : n + OWN_TOKENS])),
        ("own text grows by 3 tokens", REPEATS,
         lambda n: own.extend(text[n : n + 8], text[n + 8 : n + 11])),
        ("a round's harvest of 4 phrases", REPEATS, lambda n: shared.insert(
            [Phrase(tuple(text[n : n + 8]), tuple(text[n + 8 : n + 11]))] * 4)),
    ):  # fmt: skip
        median, tail = microseconds(call, repeats)
        table.add_row(name, f"{median:,.0f} us", f"{tail:,.0f} us")
    console.print(table)
    console.print(f"inserted at {TOKENS / inserting_s:,.0f} tokens/s; {shared.bytes >> 20} MiB, "
                  f"{shared.evictions:,} evictions; {statistics.mean(drafted):.1f} of 24 nodes "
                  "drafted on average")  # fmt: skip


if __name__ == "__main__":
    main()
