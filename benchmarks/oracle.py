"""How far a tree of the sources of `fused` could go with a perfect choice among candidates.

    python -m benchmarks.oracle [--workloads editing] [--costs benchmarks/results/zen4.json]

Decodes prompts plainly with the bundled pair in this process, and checks for every token whether it
was among the candidates. Speeds are computed from the costs of forwards in a benchmark's results,
so that they can be compared with its figures. They are upper bounds, because nothing but forwards
takes time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.bundled_pair import bundled_pair, fingerprints
from benchmarks.candidates import MAX_OFFERS, Phrases, Ranked, Recycled, decode, index_of, rankings
from benchmarks.machine import describe_machine
from benchmarks.output import prepare, run_command
from benchmarks.perfect_tree import CandidateSource, PerfectRound, perfect_rounds
from benchmarks.prompts import MAIN_WORKLOADS, Prompt, material_of
from benchmarks.recorded_costs import points_of, read_profiles
from benchmarks.settings import MIN_TOKENS, RESULTS, at_least, default_output, read_temperature
from benchmarks.systems import PROFILES, SOURCES
from benchmarks.table import sampling as in_words
from benchmarks.workload import FIRST_SEED
from draftloop.config import REPOSITORY
from draftloop.request import SamplingParameters
from orchestrator.costs import VerifyCost
from phrase_store.index import PhraseIndex, warm_up

WIDTHS = (1, 4, MAX_OFFERS)
DEPTHS = (1, 2, 4, 8, 16, 32)
CHOICES = {"all": SOURCES, **{f"only {source}": (source,) for source in SOURCES}}
Rounds = dict[tuple[str, int, int], list[PerfectRound]]


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of forwards on one profile."""

    verify: VerifyCost
    draft_ns: float

    @classmethod
    def from_json(cls, pair: Mapping[str, Any]) -> Costs:
        """Reads costs from a profile in a benchmark's results."""
        verifier, drafter = (points_of(pair, role) for role in ("verifier", "drafter"))
        return cls(VerifyCost(verifier), drafter[0].forward_ns)

    def ratio(self, rounds: Sequence[PerfectRound]) -> float:
        """Speed relative to plain decoding, which needs a verification without nodes per token."""
        spent = sum(
            self.verify.nanoseconds(round.accepted) + round.forwards * self.draft_ns
            for round in rounds
        )
        return sum(round.tokens for round in rounds) * self.verify.nanoseconds(0) / spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Upper bound for a set of sources in one workload, at the depth that is fastest there."""

    profile: str
    workload: str
    temperature: float
    sources: str
    width: int
    depth: int
    prompts: int
    tokens_per_round: float
    draft_forwards_per_token: float
    ratio: float


class Pair:
    """The bundled models of a profile, loaded in this process."""

    def __init__(self, threads: int | None, draft: str) -> None:
        pair = bundled_pair(threads, draft)
        self._target, self._draft = pair["verifier"], pair["drafter"]

    def text(
        self, prompt: Prompt, sampling: SamplingParameters, tokens: int
    ) -> tuple[list[int], list[list[int]]]:
        """See `decode`."""
        return decode(self._target, prompt.token_ids, sampling, tokens)

    def rounds(
        self, prompt: Prompt, sampling: SamplingParameters, tokens: int, others: PhraseIndex
    ) -> Rounds:
        """Perfect rounds of one prompt, by sources, width and depth."""
        text, successors = self.text(prompt, sampling, tokens)
        ranking = rankings(self._draft, text, sampling)
        length = len(prompt.token_ids)

        def fresh() -> dict[str, CandidateSource]:
            return {
                "draft_model": Ranked(ranking),
                "phrases": Phrases(text, others),
                "own_text": Phrases(text),
                "recycling": Recycled(text, length, successors),
            }

        return {
            (name, width, depth): perfect_rounds(
                text, length, [fresh()[source] for source in chosen], width=width, depth=depth
            )
            for name, chosen in CHOICES.items()
            for width in WIDTHS
            for depth in DEPTHS
        }


def merged(parts: Sequence[Rounds]) -> Rounds:
    """The rounds of all prompts, joined per key."""
    return {key: [round for part in parts for round in part[key]] for key in parts[0]}


def bounds(
    rounds: Rounds, costs: Mapping[str, Costs], workload: str, temperature: float, prompts: int
) -> Iterator[Bound]:
    """For every profile, set of sources and width, the bound at the fastest depth."""
    for profile, cost in costs.items():
        for name, width in dict.fromkeys(key[:2] for key in rounds):
            depths = [key[2] for key in rounds if key[:2] == (name, width)]
            depth = max(depths, key=lambda depth: cost.ratio(rounds[name, width, depth]))
            best = rounds[name, width, depth]
            tokens = sum(round.tokens for round in best)
            yield Bound(
                profile=profile,
                workload=workload,
                temperature=temperature,
                sources=name,
                width=width,
                depth=depth,
                prompts=prompts,
                tokens_per_round=round(tokens / len(best), 4),
                draft_forwards_per_token=round(sum(r.forwards for r in best) / tokens, 4),
                ratio=round(cost.ratio(best), 4),
            )


def measure(
    settings: argparse.Namespace, pair: Pair, costs: Mapping[str, Costs]
) -> Iterator[Bound]:
    """Measures one workload after another, leaving out those whose prompts are not available."""
    for workload, material in material_of(settings.workloads, settings.prompts).items():
        for temperature in settings.temperature:
            sampling = [
                SamplingParameters(temperature=temperature, seed=FIRST_SEED + number)
                for number in range(len(material.measured) + len(material.warming))
            ]
            others = index_of(
                [
                    (pair.text(prompt, chosen, settings.tokens)[0], len(prompt.token_ids))
                    for prompt, chosen in zip(material.warming, sampling, strict=False)
                ]
            )
            cases = list(zip(material.measured, sampling, strict=False))
            label = f"{workload}, {in_words(temperature)}"
            parts = [
                pair.rounds(prompt, chosen, settings.tokens, others)
                for prompt, chosen in track(cases, label)
            ]
            yield from bounds(merged(parts), costs, workload, temperature, len(parts))


def show(console: Console, found: Sequence[Bound]) -> None:
    """Prints the bounds for the greatest width; the file has all."""
    table = Table(title=f"bounds with {MAX_OFFERS} candidates per node", title_justify="left")
    for name in ("profile", "workload", "temperature", "sources"):
        table.add_column(name)
    for name in ("tokens/round", "forwards/token", "depth", "ratio", "n"):
        table.add_column(name, justify="right")
    for bound in (bound for bound in found if bound.width == MAX_OFFERS):
        table.add_row(
            bound.profile,
            bound.workload,
            in_words(bound.temperature),
            bound.sources,
            f"{bound.tokens_per_round:.2f}",
            f"{bound.draft_forwards_per_token:.2f}",
            str(bound.depth),
            f"{bound.ratio:.2f}x",
            str(bound.prompts),
        )
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--workloads", nargs="+", choices=list(MAIN_WORKLOADS), default=list(MAIN_WORKLOADS)
    )
    parser.add_argument("--temperature", type=read_temperature, nargs="+", default=[0.8, 0.0])
    parser.add_argument("--prompts", type=at_least(1), default=8)
    parser.add_argument("--tokens", type=at_least(MIN_TOKENS), default=64)
    parser.add_argument("--threads", type=at_least(1))
    parser.add_argument("--costs", default=str((RESULTS / "zen4.json").relative_to(REPOSITORY)),
                        help="results whose costs of forwards count")  # fmt: skip
    parser.add_argument("--out", default=str(default_output("oracle.json").relative_to(REPOSITORY)))
    settings = parser.parse_args(arguments)
    prepare(Path(settings.out))
    profiles = read_profiles([settings.costs])
    warm_up()
    found: list[Bound] = []
    drafts = dict.fromkeys(PROFILES[name].draft for name in profiles)
    for draft in drafts:
        costs = {
            name: Costs.from_json(pair)
            for name, pair in profiles.items()
            if PROFILES[name].draft == draft
        }
        found += measure(settings, Pair(settings.threads, draft), costs)
    show(Console(), found)
    header = {
        "settings": vars(settings),
        "machine": describe_machine(),
        "models": fingerprints(drafts),
    }
    content = {**header, "profiles": profiles, "bounds": [asdict(bound) for bound in found]}
    Path(settings.out).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    run_command(main)
