"""The best temperature for a draft model: how often its candidates include the target's token.

    python -m benchmarks.draft_temperature [--draft drafter-large] [--temperature 0.7 1.0]

Decodes prompts plainly with the bundled target. After every token, samples from the draft model
with the target's own noise, at fractions of the request's temperature (`draft_temperature`).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from benchmarks.bundled_pair import bundled_pair, fingerprints
from benchmarks.candidates import decode, logits_of
from benchmarks.machine import describe_machine
from benchmarks.output import prepare, run_command
from benchmarks.prompts import MAIN_WORKLOADS, material_of
from benchmarks.settings import MIN_TOKENS, at_least, read_temperature
from benchmarks.workload import FIRST_SEED
from draftloop.request import SamplingParameters
from draftloop.runtime.sampling import Sampler

PARTS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6)
MAX_CANDIDATES = 4
DRAFTS = ("drafter", "drafter-large")


@dataclass(frozen=True, slots=True)
class TargetRank:
    """A draft model's candidates at one position.

    rank: of the target's token among the candidates, -1 if it is not one. share: of the first
    candidate.
    """

    rank: int
    share: float


@dataclass(frozen=True, slots=True)
class HitRates:
    """How often the first 1, 2 and 4 candidates include the target's token, at a part of the heat.

    `part` is the fraction of the request's temperature. `nats` is the log loss of the first
    candidate's share as the probability that it is right.
    """

    workload: str
    temperature: float
    part: float
    positions: int
    first: float
    of_two: float
    of_four: float
    nats: float

    @classmethod
    def from_ranks(
        cls, workload: str, temperature: float, part: float, ranks: Sequence[TargetRank]
    ) -> HitRates:
        """Averages over all positions."""
        one, two, four = (
            sum(0 <= each.rank < most for each in ranks) / len(ranks) for most in (1, 2, 4)
        )
        return cls(workload, temperature, part, len(ranks), one, two, four, _nats(ranks))


def _nats(ranks: Sequence[TargetRank]) -> float:
    chances = [each.share if each.rank == 0 else 1 - each.share for each in ranks]
    return -sum(math.log(max(chance, 1e-6)) for chance in chances) / len(ranks)


def target_ranks(
    logits: Tensor, text: Sequence[int], start: int, sampler: Sampler, part: float
) -> Iterator[TargetRank]:
    """The draft model's candidates from `start` on, at a part of the request's temperature."""
    sampler.scale_temperature(part)
    positions = range(start, len(text))
    paths = [()] * len(positions)
    choices = sampler.best(logits[start - 1 :], positions, paths, MAX_CANDIDATES)
    for token, tokens, shares in zip(
        text[start:], choices.token_ids, choices.shares(), strict=True
    ):
        yield TargetRank(tokens.index(token) if token in tokens else -1, shares[0])


def measure(settings: argparse.Namespace) -> Iterator[HitRates]:
    """Measures one workload after another, leaving out those whose prompts are not available."""
    target, draft = bundled_pair(settings.threads, settings.draft).values()
    for workload, material in material_of(MAIN_WORKLOADS, settings.prompts).items():
        for temperature in settings.temperature:
            ranks: dict[float, list[TargetRank]] = {part: [] for part in PARTS}
            for number, prompt in enumerate(track(material.measured, f"{workload}, {temperature}")):
                sampling = SamplingParameters(temperature=temperature, seed=FIRST_SEED + number)
                text, _ = decode(target, prompt.token_ids, sampling, settings.tokens)
                logits, start = logits_of(draft, text), len(prompt.token_ids)
                sampler = Sampler(sampling, draft.vocabulary_size, draft.device)
                for part in PARTS:
                    ranks[part] += target_ranks(logits, text, start, sampler, part)
            for part in PARTS:
                yield HitRates.from_ranks(workload, temperature, part, ranks[part])


def show(console: Console, found: Sequence[HitRates]) -> None:
    """Prints a table over all workloads together."""
    table = Table(title="the target's token among a draft model's candidates", title_justify="left")
    for name in ("temperature", "part", "first", "of two", "of four", "nats", "n"):
        table.add_column(name, justify="right")
    for temperature in dict.fromkeys(rates.temperature for rates in found):
        for part in PARTS:
            selected = [
                rates for rates in found if (rates.temperature, rates.part) == (temperature, part)
            ]
            count = sum(rates.positions for rates in selected)
            table.add_row(str(temperature), str(part), *(
                f"{sum(getattr(rates, name) * rates.positions for rates in selected) / count:.4f}"
                for name in ("first", "of_two", "of_four", "nats")
            ), str(count))  # fmt: skip
    console.print(table)


def read_warm(text: str) -> float:
    """Reads a temperature above 0, for which there is noise."""
    if not (temperature := read_temperature(text)):
        raise argparse.ArgumentTypeError("temperature: must be above 0, where noise decides")
    return temperature


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draft", choices=DRAFTS, default=DRAFTS[0])
    parser.add_argument("--temperature", type=read_warm, nargs="+", default=[0.8])
    parser.add_argument("--prompts", type=at_least(1), default=16)
    parser.add_argument("--tokens", type=at_least(MIN_TOKENS), default=96)
    parser.add_argument("--threads", type=at_least(1))
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    settings = parser.parse_args(arguments)
    if settings.out:
        prepare(settings.out)
    found = list(measure(settings))
    show(Console(), found)
    if settings.out:
        options = {**vars(settings), "out": str(settings.out)}
        header = {
            "settings": options,
            "machine": describe_machine(),
            "models": fingerprints([settings.draft]),
        }
        content = {**header, "met": [asdict(rates) for rates in found]}
        settings.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    run_command(main)
