"""Time to plan a draft: all sources of `fused` except forwards, and the choice of nodes.

`python -m benchmarks.planning` prints medians; the goal for 32 nodes is 300 microseconds.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time

from rich.console import Console
from rich.table import Table

from draftloop.model_info import CostPoint
from draftloop.tree import MAX_SUCCESSORS, Verdict
from orchestrator.budget import Controller
from orchestrator.costs import VerifyCost
from orchestrator.figures import SpeculationFigures
from orchestrator.fused import FusedDrafting
from orchestrator.outcome import RoundOutcome
from phrase_store.index import PhraseIndex
from phrase_store.session import PhraseSession
from phrase_store.store import warm_up
from phrase_store.successors import SuccessorTable

VOCABULARY = 4096
SHARED_TOKENS, OWN_TOKENS = 200_000, 800
ROUNDS, WARM_UP = 400, 50
SIZES = (8, 16, 32)
# Nodes cost nothing, so every node pays, and planning has the most work.
FREE = (CostPoint(1, 10_000_000), CostPoint(32, 10_000_000))


def text_of(tokens: int, seed: int) -> list[int]:
    """Text in which words recur as they do in code: rank r about 1 / r of the time."""
    drawn = random.Random(seed)
    words = [[drawn.randrange(VOCABULARY) for _ in range(drawn.randint(1, 6))] for _ in range(3000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    text: list[int] = []
    while len(text) < tokens:
        text += drawn.choices(words, weights)[0]
    return text[:tokens]


def drafting(own: list[int], nodes: int) -> tuple[FusedDrafting, Controller]:
    """A session with all sources except a draft model."""
    shared = PhraseIndex(max_bytes=64 << 20, grows=True)
    shared.extend((), text_of(SHARED_TOKENS, seed=1))
    table = SuccessorTable(VOCABULARY)
    table.rows[:] = [
        random.Random(token).sample(range(VOCABULARY), MAX_SUCCESSORS)
        for token in range(VOCABULARY)
    ]
    phrases = PhraseSession(own, ROUNDS * 4, shared=shared, successors=table)
    controller = Controller(max_nodes=nodes, verify_cost=VerifyCost(FREE))
    made = FusedDrafting(phrases, None, controller=controller, figures=SpeculationFigures())
    return made, controller


async def rounds(nodes: int) -> tuple[list[float], list[float], float]:
    """Microseconds of proposing and of learning per round, and mean nodes per draft."""
    continuation = text_of(OWN_TOKENS + 4 * (ROUNDS + WARM_UP), seed=2)
    committed = continuation[:OWN_TOKENS]
    plans, controller = drafting(committed, nodes)
    proposing, learning, drafted = [], [], []
    for number in range(ROUNDS + WARM_UP):
        began = time.perf_counter()
        draft = await plans.propose(committed, controller.next_budget(64))
        proposed = time.perf_counter()
        emitted = continuation[len(committed) : len(committed) + 1 + number % 4]
        committed = committed + emitted
        verdict = Verdict((), tuple(emitted), emitted[0], (0,) * len(draft.tree))
        learning_end = time.perf_counter()
        plans.observe(
            RoundOutcome(
                committed=committed, new_tokens=len(emitted), draft=draft.tree, verdict=verdict
            )
        )
        if number >= WARM_UP:
            proposing.append((proposed - began) * 1e6)
            learning.append((time.perf_counter() - learning_end) * 1e6)
            drafted.append(len(draft.tree))
    return proposing, learning, statistics.mean(drafted)


def main() -> None:
    """Prints the table."""
    warm_up()
    table = Table(title="planning a draft, microseconds")
    for column in ("most nodes", "nodes on average", "median", "95 %", "learning, median"):
        table.add_column(column, justify="right")
    for nodes in SIZES:
        proposing, learning, drafted = asyncio.run(rounds(nodes))
        late = statistics.quantiles(proposing, n=20)[-1]
        figures = (drafted, statistics.median(proposing), late, statistics.median(learning))
        table.add_row(str(nodes), *(f"{figure:.0f}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
