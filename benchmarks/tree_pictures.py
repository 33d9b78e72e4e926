"""Draws, for every strategy, the draft tree of a real round with its accepted nodes.

`python -m benchmarks.tree_pictures` starts all roles with the bundled pair, lets each strategy
continue held-out text, and draws the round that shows most of the strategy to
`docs/trees/STRATEGY.svg`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.patches import Rectangle
from rich.console import Console

from benchmarks.figure import RC, save
from benchmarks.prompts import Prompt, editing, held_out_prompts
from draftloop.config import REPOSITORY
from draftloop.deadline import Deadline
from draftloop.request import GenerationParameters, SamplingParameters
from draftloop.speculation import AUTOREGRESSIVE, STRATEGIES, Speculation
from draftloop.tree import ROOT, SOURCE_NAMES, DraftTree, TokenSource, Verdict
from orchestrator.config import OrchestratorSettings
from orchestrator.deployment import Deployment
from orchestrator.launcher import Stack
from orchestrator.outcome import RoundOutcome
from orchestrator.requests import RequestReader
from orchestrator.stack_config import StackConfig

FOLDER = REPOSITORY / "docs" / "trees"
TOKENS, PROMPTS = 64, 4
MAX_NODES, MAX_DEPTH = 22, 9  # for a legible picture
FIXED_NODES = {"token_recycling": 16, "opt_tree": 16}  # the others choose their own size
COLORS = {
    TokenSource.DRAFT_MODEL: "#9ec5fe",
    TokenSource.PROMPT_LOOKUP: "#ffda9e",
    TokenSource.PHRASE: "#f5b5d0",
    TokenSource.LOOKAHEAD: "#d5d5d5",
    TokenSource.RECYCLED: "#bfe6c8",
}
NAMES = {
    **SOURCE_NAMES,
    TokenSource.PHRASE: "others' phrases",
    TokenSource.LOOKAHEAD: "lookahead window",
}


@dataclass(frozen=True, slots=True)
class Round:
    """A verified draft; `root` is the last committed token before it."""

    root: int
    tree: DraftTree
    verdict: Verdict

    @property
    def interest(self) -> tuple[bool, bool, int, bool, int, int]:
        """Sort key for rounds to show: legible, something accepted, sources, branches, length."""
        tree, accepted = self.tree, len(self.verdict.accepted_nodes)
        legible = len(tree) <= MAX_NODES and max(tree.depths(), default=0) <= MAX_DEPTH
        branches = len(set(tree.parents)) < len(tree)
        sources, nodes = len(set(tree.sources)), len(tree) if legible else 0
        return legible, accepted > 0, sources, branches, accepted, nodes


async def rounds(deployment: Deployment, strategy: str, prompt: Prompt) -> list[Round]:
    """All rounds of one continuation."""
    parameters = GenerationParameters(
        token_ids=prompt.token_ids,
        sampling=SamplingParameters(temperature=0.8),
        seed=5,
        max_tokens=TOKENS,
        ignore_eos=True,
        speculation=Speculation(strategy=strategy, max_draft_tokens=FIXED_NODES.get(strategy)),
    )
    reader = RequestReader(deployment.settings, deployment.tokenizer, deployment.grammars)
    request = await reader.read(parameters, deployment.verifier)
    generation = deployment.generation(request, Deadline(None))
    seen: list[Round] = []
    observe = generation.drafting.observe

    def watch(outcome: RoundOutcome) -> None:
        seen.append(Round(outcome.context[-1], outcome.draft, outcome.verdict))
        observe(outcome)

    generation.drafting.observe = watch  # type: ignore[method-assign]
    async for _ in generation.run():
        pass
    return [one for one in seen if len(one.tree)]


def heights(tree: DraftTree) -> dict[int, float]:
    """A row for every node: leaves one below the other, parents in the row of their first child."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(node)
    placed: dict[int, float] = {}
    leaves = 0

    def place(node: int) -> float:
        nonlocal leaves
        below = [place(child) for child in children.get(node, ())]
        if not below:
            leaves += 1
        placed[node] = below[0] if below else float(leaves)
        return placed[node]

    place(ROOT)
    return placed


def draw(one: Round, text: Any, file: Path) -> None:
    """Writes the picture; `text(token)` is a token's text."""
    depths = {ROOT: 0, **dict(enumerate(one.tree.depths()))}
    rows = heights(one.tree)
    accepted = {ROOT, *one.verdict.accepted_nodes}
    with pyplot.rc_context(RC):
        size = (1.6 + 1.35 * max(depths.values()), 0.9 + 0.36 * max(rows.values()))
        figure, axes = pyplot.subplots(figsize=size, layout="constrained")
        for node, parent in enumerate(one.tree.parents):
            kept = node in accepted
            x, y = (depths[parent], depths[node]), (rows[parent], rows[node])
            axes.plot(x, y, color="#2a7d3f" if kept else "#b0b0b0", lw=2.2 if kept else 1, zorder=1)
        for node, row in rows.items():
            token = one.root if node == ROOT else one.tree.token_ids[node]
            face = "#ffffff" if node == ROOT else COLORS[one.tree.sources[node]]
            edge = "#2a7d3f" if node in accepted else "#808080"
            box = {
                "boxstyle": "round",
                "fc": face,
                "ec": edge,
                "lw": 2 if node in accepted else 0.8,
            }
            axes.text(
                depths[node], row, text(token), ha="center", va="center", fontsize=9,
                family="monospace", bbox=box, zorder=2,
            )  # fmt: skip
        shown = sorted(set(one.tree.sources))
        handles = [Rectangle((0, 0), 1, 1, fc=COLORS[s], ec="#808080") for s in shown]
        axes.legend(
            handles, [NAMES[s] for s in shown], loc="upper center", bbox_to_anchor=(0.5, -0.02),
            ncols=3, frameon=False, fontsize=8,
        )  # fmt: skip
        axes.set_ylim(max(rows.values()) + 0.7, 0.3)
        axes.set_xlim(-0.6, max(depths.values()) + 0.6)
        axes.set_axis_off()
        save(figure, file)


async def main() -> None:
    """Starts the roles, runs all strategies, and draws the pictures."""
    console = Console()
    config = StackConfig(port=0, http_port=None, drafter_port=0, verifier_port=0, inflate="300M")
    prompts = [*held_out_prompts(PROMPTS), *editing(PROMPTS).measured]
    with console.status("starting"), Stack(config) as stack:
        deployment = Deployment(
            OrchestratorSettings(
                listen="127.0.0.1:0",
                verifiers=stack.processes["verifier"].address,
                drafters=stack.processes["drafter"].address,
            )
        )
        await deployment.start()
        for strategy in STRATEGIES:
            if strategy == AUTOREGRESSIVE:
                continue
            seen: list[Round] = []
            for prompt in prompts:
                console.print(f"{strategy}: {prompt.file}")
                seen += await rounds(deployment, strategy, prompt)
            if seen:
                best = max(seen, key=lambda one: one.interest)
                draw(best, lambda t: repr(deployment.tokenizer.decode([t]))[1:-1], _file(strategy))
        await deployment.stop()


def _file(strategy: str) -> Path:
    return FOLDER / f"{strategy}.svg"


if __name__ == "__main__":
    asyncio.run(main())
