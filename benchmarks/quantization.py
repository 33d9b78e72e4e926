"""`python -m benchmarks.quantization`: speed and quality of weights of eight bits and four.

    python -m benchmarks.quantization [--profile 300M] [--repeats 16] [--tokens 64]

Scores held-out text with the bundled target model, unquantized and quantized. Then deployments that
differ in the target's weights continue the same prompts in turns. Prints tables and writes
OUT.json.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import prompts
from benchmarks.machine import available_cores, describe_machine, describe_model
from benchmarks.output import prepare, run_command, with_suffixes
from benchmarks.services import Services, running, stack_of
from benchmarks.settings import MIN_TOKENS, at_least, default_output
from benchmarks.systems import PLAIN, PROFILES
from benchmarks.workload import Case, Workload
from draftloop.config import Quantization, bundled_model
from draftloop.runtime.forward import Forward
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel

# Names of columns, and the corresponding setting of the services.
FORMATS: dict[str, Quantization] = {
    "bfloat16": "none", "int8": "int8", "w8a8": "w8a8", "w4a8": "w4a8",
}  # fmt: skip
METHODS = (PLAIN, "fused cold", "fused warm")
TEXTS, CONTEXT = 48, 1024  # number of held-out prompts to score, and maximum tokens of each
TOGETHER, TOGETHER_METHODS = 8, (PLAIN, "fused cold")  # requests at a time
LONG_PROMPT = 900  # tokens
TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probabilities of a text's tokens, and the most likely token at each position."""

    log_probabilities: torch.Tensor
    likeliest: torch.Tensor


def scored(quantization: str) -> Scored:
    """Scores of held-out prompts by the bundled target model in bfloat16."""
    options = ModelOptions(
        folder=bundled_model("verifier"), dtype="bfloat16", context_length=CONTEXT,
        quantization="" if quantization == "none" else quantization,
    )  # fmt: skip
    model = LanguageModel(options)
    found, likeliest = [], []
    for prompt in prompts.held_out_prompts(TEXTS):
        slot = model.acquire()
        ids = list(prompt.token_ids)[:CONTEXT]
        (logits,) = model.forward([Forward(model, slot, ids)])
        model.cache.release(slot)
        following = torch.tensor(ids[1:])[:, None]
        found.append(logits[:-1].log_softmax(-1).gather(1, following)[:, 0])
        likeliest.append(logits[:-1].argmax(-1))
    return Scored(torch.cat(found), torch.cat(likeliest))


def quality() -> dict[str, Any]:
    """Each format's loss, and how often its most likely token is the unquantized model's."""
    each = {name: scored(quantization) for name, quantization in FORMATS.items()}
    whole = each["bfloat16"]
    losses = {name: -one.log_probabilities.mean() for name, one in each.items()}
    same = {name: (one.likeliest == whole.likeliest).float().mean() for name, one in each.items()}
    return {
        "tokens": len(whole.likeliest),
        "loss": {name: round(float(loss), 4) for name, loss in losses.items()},
        "same_most_likely": {name: round(float(share), 4) for name, share in same.items()},
    }


class Deployment:
    """Services that are measured in turns with others, and the times measured so far."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._tokens: dict[str, int] = defaultdict(int)
        self._seconds: dict[str, float] = defaultdict(float)
        self._first: list[float] = []

    def warm_up(self, workload: Workload) -> None:
        """Fills the pool of phrases, and runs every method once."""
        for case in workload.warming():
            self.services.warm(case)
        for method in METHODS:
            self.services.run(method, workload.warm_up())

    def continue_one(self, method: str, case: Case) -> None:
        """Measures a single continuation."""
        outcome = self.services.run(method, case)
        self._add(method, outcome.decoded, outcome.decode_s)

    def continue_many(self, method: str, cases: Sequence[Case]) -> None:
        """Measures concurrent continuations, including their prompts."""
        began = time.perf_counter()
        outcomes = self.services.run_together(method, cases, len(cases))
        tokens = sum(len(outcome.token_ids) for outcome in outcomes)
        self._add(f"{method}, {len(cases)} at a time", tokens, time.perf_counter() - began)

    def read(self, case: Case) -> None:
        """Measures the prefill of a long prompt."""
        self._first.append(self.services.run(PLAIN, case).first_token_s)

    def _add(self, measure_name: str, tokens: int, seconds: float) -> None:
        self._tokens[measure_name] += tokens
        self._seconds[measure_name] += seconds

    def figures(self) -> dict[str, float]:
        """Tokens per second over all runs; for the long prompt, the median."""
        speeds = {
            measure_name: tokens / self._seconds[measure_name]
            for measure_name, tokens in self._tokens.items()
        }
        read = LONG_PROMPT / statistics.median(self._first)
        return {
            **{measure_name: round(speed, 1) for measure_name, speed in speeds.items()},
            f"a prompt of {LONG_PROMPT} tokens": round(read, 1),
        }


def measure(deployments: Sequence[Deployment], workload: Workload, repeats: int) -> None:
    """Measures the prompts one by one, then all of them together, with deployments in turns."""
    for one in deployments:
        one.warm_up(workload)
    cases = list(itertools.islice(itertools.chain(*workload.repetitions()), repeats))
    for number, case in enumerate(track(cases, "prompts")):
        turns = list(itertools.product(deployments, METHODS))
        for one, method in turns if number % 2 else reversed(turns):
            one.continue_one(method, case)
    long = dataclasses.replace(cases[0], prompt=_long_prompt(), tokens=1)
    for number in track(range(max(2, repeats // 8)), f"{TOGETHER} at a time"):
        together = [dataclasses.replace(case, seed=case.seed + number) for case in cases[:TOGETHER]]
        for one in deployments if number % 2 else reversed(deployments):
            one.read(long)
            for method in TOGETHER_METHODS:
                one.continue_many(method, together)


def _long_prompt() -> prompts.Prompt:
    texts = itertools.chain.from_iterable(p.token_ids for p in prompts.held_out_prompts(TEXTS))
    ids = tuple(itertools.islice(texts, LONG_PROMPT))
    return prompts.Prompt("held-out prompts in a row", "", ids)


def show(console: Console, results: dict[str, Any], profile: str) -> None:
    """Prints the results as tables."""
    table = _table(f"held-out text, {results['quality']['tokens']} tokens")
    loss, same = results["quality"]["loss"], results["quality"]["same_most_likely"]
    table.add_row("loss, nats a token", *(f"{loss[name]:.4f}" for name in FORMATS))
    table.add_row("same most likely token", *(f"{same[name]:.1%}" for name in FORMATS))
    console.print(table)
    table = _table(f"tokens a second, profile {profile}")
    by_format = results["tokens_per_second"]
    for measure_name in by_format["bfloat16"]:
        whole, *rounded = (by_format[name][measure_name] for name in FORMATS)
        ratios = (f"{speed:.1f} ({speed / whole:.2f}x)" for speed in rounded)
        table.add_row(measure_name, f"{whole:.1f}", *ratios)
    console.print(table)


def _table(title: str) -> Table:
    table = Table(title=title)
    for column in ("", *FORMATS):
        table.add_column(column, justify="right" if column else "left")
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", choices=PROFILES, default="300M")
    parser.add_argument("--repeats", type=at_least(1), default=16,
                        help="prompts that are continued")  # fmt: skip
    parser.add_argument("--tokens", type=at_least(MIN_TOKENS), default=64,
                        help="tokens of each")  # fmt: skip
    parser.add_argument("--out", type=Path, default=default_output("quantization"))
    options = parser.parse_args(arguments)
    (file,) = with_suffixes(options.out, ".json")
    prepare(file)
    console = Console()
    results: dict[str, Any] = {"machine": describe_machine(), "profile": options.profile}
    results["quality"] = quality()
    workload = Workload(
        name="completion", material=prompts.completion(8), tokens=options.tokens,
        temperatures=(TEMPERATURE,),
    )  # fmt: skip
    profile = PROFILES[options.profile]
    with contextlib.ExitStack() as stack:
        deployments = {}
        for name, quantization in FORMATS.items():
            config = stack_of(profile, available_cores(), quantization=quantization)
            console.print(f"starting the services, {name} ...")
            deployments[name] = Deployment(stack.enter_context(running(config, lambda _: None)))
        results["models"] = {
            name: describe_model(one.services.info().verifier) for name, one in deployments.items()
        }
        measure(list(deployments.values()), workload, options.repeats)
    results["tokens_per_second"] = {name: one.figures() for name, one in deployments.items()}
    show(console, results, options.profile)
    file.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    run_command(main)
