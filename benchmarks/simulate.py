"""What strategies decide, without a machine's noise: speeds in virtual time.

    python -m benchmarks.simulate [--workloads editing] [--costs benchmarks/results/zen4.json]

Every method continues every prompt with the bundled pair, in this process. The loop, the drafts and
the verdicts are real; time passes only according to the costs of forwards in a benchmark's results
(`benchmarks.virtual`). The same command always gives the same figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.bundled_pair import bundled_pair, fingerprints
from benchmarks.machine import describe_machine
from benchmarks.output import prepare, run_command
from benchmarks.prompts import MAIN_WORKLOADS, Material, material_of
from benchmarks.recorded_costs import Curve, curves_of, part_of, read_profiles
from benchmarks.services import parameters
from benchmarks.settings import MIN_TOKENS, RESULTS, at_least, from_zero_to, read_temperature
from benchmarks.systems import COMPARED, METHODS, PLAIN, PROFILES
from benchmarks.table import sampling
from benchmarks.virtual import Around, World
from benchmarks.virtual_sessions import installed
from benchmarks.workload import Case, Workload
from draftloop.config import REPOSITORY, bundled_model
from draftloop.deadline import Deadline
from draftloop.runtime.model import LanguageModel
from draftloop.speculation import OUROBOROS, Speculation
from orchestrator.config import OrchestratorSettings
from orchestrator.deployment import Deployment
from orchestrator.requests import RequestReader
from phrase_store.index import warm_up

OURS = [name for name, method in METHODS.items() if method.system == "draftloop"]
MAX_MS = 10_000  # maximum for anything other than forwards
SOMEWHERE = "127.0.0.1:1"  # never connected to


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One continuation with one method; `tokens` and `seconds` are those after the first tokens.

    Noise changes what methods decide, but `seconds` are those without it.
    """

    workload: str
    method: str
    tokens: int
    rounds: int
    forwards: int
    seconds: float
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A method in a workload; `ratio` is the speed of all its runs relative to plain decoding's."""

    profile: str
    temperature: float
    workload: str
    method: str
    ratio: float
    tokens_per_round: float
    forwards_per_token: float
    equal: bool
    runs: int


def simulate(
    pair: Mapping[str, LanguageModel],
    curves: Mapping[str, Curve],
    method: str,
    workloads: Sequence[Workload],
    around: Around,
    *,
    drafts_ahead: bool = False,
    noise: float = 0.0,
) -> list[Run]:
    """Runs one method in a deployment of its own; the workloads take turns."""
    world = World(pair, around, drafts_ahead=drafts_ahead, noise=noise)
    for role, model in pair.items():
        world.cost(model, curves[role])
    settings = OrchestratorSettings(
        verifiers=SOMEWHERE,
        drafters=SOMEWHERE,
        tokenizer=bundled_model("verifier"),
        phrases_url="memory://",
    )
    with installed(world), asyncio.Runner() as runner:
        deployment = Deployment(settings)
        chosen = METHODS[method]
        if chosen.pool == "warm":
            for workload in workloads:
                for case in workload.warming():
                    warming = Speculation(strategy=OUROBOROS)
                    runner.run(_run(world, deployment, method, case, warming))
        turns = zip(*(workload.repetitions() for workload in workloads), strict=False)
        runs = [
            runner.run(_run(world, deployment, method, case, chosen.speculation))
            for turn in turns
            for repetition in turn
            for case in repetition
        ]
        deployment.store.close()
    return runs


async def _run(
    world: World, deployment: Deployment, method: str, case: Case, speculation: Speculation
) -> Run:
    tenant = f"{case.workload}, {METHODS[method].pool}"
    reader = RequestReader(deployment.settings, deployment.tokenizer, deployment.grammars)
    parameters_of_case = replace(parameters(speculation, tenant, case), request_id=f"{case.seed}")
    request = await reader.read(parameters_of_case, deployment.verifier)
    generation = deployment.generation(request, Deadline.after(None))
    first, noise_ns = None, 0
    async for piece in generation.run():
        if first is None:
            first, noise_ns = len(piece.token_ids), world.noise_ns
    figures = generation.figures
    return Run(
        workload=case.workload,
        method=method,
        tokens=len(generation.output) - (first or 0),
        rounds=figures.rounds,
        forwards=figures.draft_forwards,
        seconds=(generation.timings.decode_ns - (world.noise_ns - noise_ns)) / 1e9,
        token_ids=tuple(generation.output),
    )


def cells(
    profile: str, temperature: float, runs: Sequence[Run], plain: Sequence[Run]
) -> Iterator[Cell]:
    """One cell per workload."""
    for workload in dict.fromkeys(run.workload for run in runs):
        own_runs = [run for run in runs if run.workload == workload]
        plain_runs = [run for run in plain if run.workload == workload]
        tokens = sum(run.tokens for run in own_runs)
        speed = tokens / sum(run.seconds for run in own_runs)
        reference = sum(run.tokens for run in plain_runs) / sum(run.seconds for run in plain_runs)
        yield Cell(
            profile=profile,
            temperature=temperature,
            workload=workload,
            method=own_runs[0].method,
            ratio=round(speed / reference, 4),
            tokens_per_round=round(tokens / sum(run.rounds for run in own_runs), 4),
            forwards_per_token=round(sum(run.forwards for run in own_runs) / tokens, 4),
            equal=[run.token_ids for run in own_runs] == [run.token_ids for run in plain_runs],
            runs=len(own_runs),
        )


def show(console: Console, title: str, found: Sequence[Cell]) -> None:
    """Prints ratios by workload, their geometric mean, and tokens per round."""
    workloads = list(dict.fromkeys(cell.workload for cell in found))
    table = Table(title=f"virtual speed over plain decoding, {title}", title_justify="left")
    table.add_column("method")
    for name in (*workloads, "mean", "tokens/round", "equal"):
        table.add_column(name, justify="right")
    for method in dict.fromkeys(cell.method for cell in found):
        own_cells = [cell for cell in found if cell.method == method]
        mean = statistics.geometric_mean(cell.ratio for cell in own_cells)
        tokens_per_round = statistics.mean(cell.tokens_per_round for cell in own_cells)
        figures = [*(cell.ratio for cell in own_cells), mean]
        equal = "yes" if all(cell.equal for cell in own_cells) else "NO"
        table.add_row(
            method, *(f"{figure:.3f}" for figure in figures), f"{tokens_per_round:.2f}", equal
        )
    console.print(table)


def read(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--costs", nargs="+",
                        default=[str((RESULTS / "bf16.json").relative_to(REPOSITORY))],
                        help="results whose costs of forwards count")  # fmt: skip
    parser.add_argument("--draft-share", type=from_zero_to(1),
                        help="part of the target's time that a draft forward takes")  # fmt: skip
    parser.add_argument("--profiles", nargs="+", choices=list(PROFILES),
                        help="whose models the results have; default: theirs")  # fmt: skip
    parser.add_argument(
        "--workloads", nargs="+", choices=list(MAIN_WORKLOADS), default=list(MAIN_WORKLOADS)
    )
    parser.add_argument("--strategies", nargs="+", choices=OURS,
                        default=[name for name in COMPARED if name in OURS])  # fmt: skip
    parser.add_argument("--temperature", type=read_temperature, nargs="+", default=[0.8])
    parser.add_argument("--prompts", type=at_least(1), default=8)
    parser.add_argument("--tokens", type=at_least(MIN_TOKENS), default=64)
    parser.add_argument("--passes", type=at_least(1), default=1, help="seeds for every prompt")
    for name, default in asdict(Around()).items():
        parser.add_argument(f"--{name}-ms", type=from_zero_to(MAX_MS), default=default,
                            help=f"beside the forwards, of every {name}")  # fmt: skip
    parser.add_argument("--draft-ahead", action="store_true",
                        help="the drafter has a machine of its own and drafts ahead")  # fmt: skip
    parser.add_argument("--noise", type=from_zero_to(1), default=0.0,
                        help="spread of forwards' times; 0.15 on a shared machine")  # fmt: skip
    parser.add_argument("--threads", type=at_least(1), default=1,
                        help="of this process's forwards")  # fmt: skip
    parser.add_argument("--out", help="JSON file for the figures; default: none is written")
    return parser.parse_args(arguments)


def _workload(
    name: str, material: Material, settings: argparse.Namespace, temperature: float
) -> Workload:
    return Workload(
        name=name,
        material=material,
        tokens=settings.tokens,
        temperatures=(temperature,),
        passes=settings.passes,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs, prints and writes the results."""
    settings = read(arguments)
    if settings.out:
        prepare(Path(settings.out))
    materials = material_of(settings.workloads, settings.prompts)
    known = read_profiles(settings.costs)
    around = Around(**{name: getattr(settings, f"{name}_ms") for name in asdict(Around())})
    profiles, found = settings.profiles or list(known), []
    drafts = {(PROFILES[name].draft, PROFILES[name].smaller) for name in profiles}
    pairs = {models: bundled_pair(settings.threads, *models) for models in drafts}
    warm_up()
    for profile, temperature in product(profiles, settings.temperature):
        workloads = [_workload(*named, settings, temperature) for named in materials.items()]
        title = f"{profile}, {sampling(temperature)}"
        chosen = PROFILES[profile]
        curves, pair = curves_of(chosen, known), pairs[chosen.draft, chosen.smaller]
        if settings.draft_share is not None:
            curves["drafter"] = part_of(curves["verifier"], settings.draft_share)
        plain = simulate(pair, curves, PLAIN, workloads, around)
        here: list[Cell] = []
        for method in track([m for m in settings.strategies if m != PLAIN], title):
            runs = simulate(
                pair,
                curves,
                method,
                workloads,
                around,
                drafts_ahead=settings.draft_ahead,
                noise=settings.noise,
            )
            here += cells(profile, temperature, runs, plain)
        show(Console(), title, here)
        found += here
    if settings.out:
        names = dict.fromkeys(name for draft, smaller in drafts for name in (draft, *smaller))
        content = {
            "settings": vars(settings),
            "commit": describe_machine()["commit"],
            "models": fingerprints(sorted(names)),
            "cells": [asdict(cell) for cell in found],
        }
        Path(settings.out).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    run_command(main)
