"""`python -m benchmarks.quantization`: what weights of eight bits cost, and what they are worth.

    python -m benchmarks.quantization [--profile 300M] [--repeats 6] [--tokens 64]

The bundled target model, whole and quantized, says how likely held-out text is. Then two
deployments that differ in the target's weights continue the same prompts in turns. Tables, and
OUT.json.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
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
from benchmarks.services import Services, running, stack_of
from benchmarks.settings import RESULTS
from benchmarks.systems import PLAIN, PROFILES
from benchmarks.workload import Workload
from draftloop.config import Quantization, bundled_model
from draftloop.runtime.forward import Forward
from draftloop.runtime.loading import ModelOptions
from draftloop.runtime.model import LanguageModel

# Names of columns, and what the services are told.
FORMATS: dict[str, Quantization] = {"bfloat16": "none", "int8": "int8"}
METHODS = (PLAIN, "fused cold", "fused warm")
TEXTS, CONTEXT = 48, 1024  # held-out prompts that are scored, and the most tokens of one
TEMPERATURE = 0.8
Speeds = dict[str, dict[str, list[float]]]


@dataclass(frozen=True, slots=True)
class Scored:
    """The log-probabilities of a text's tokens, and the tokens most likely in their places."""

    log_probabilities: torch.Tensor
    likeliest: torch.Tensor


def scored(quantization: str) -> Scored:
    """Held-out prompts as the bundled target model in bfloat16 sees them."""
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
    """Loss of both, and how often the most likely token is the same."""
    both = {name: scored(told) for name, told in FORMATS.items()}
    whole = both["bfloat16"]
    losses = {name: -one.log_probabilities.mean() for name, one in both.items()}
    same = {name: (one.likeliest == whole.likeliest).float().mean() for name, one in both.items()}
    return {
        "tokens": len(whole.likeliest),
        "loss": {name: round(float(loss), 4) for name, loss in losses.items()},
        "same_most_likely": {name: round(float(share), 4) for name, share in same.items()},
    }


def speeds(services: dict[str, Services], workload: Workload, repeats: int) -> Speeds:
    """Tokens a second by format and method, in turns."""
    for one in services.values():
        for case in workload.warming():
            one.warm(case)
        for method in METHODS:
            one.run(method, workload.warm_up())
    measured: Speeds = {name: defaultdict(list) for name in services}
    cases = list(itertools.islice(itertools.chain(*workload.repetitions()), repeats))
    for number, case in enumerate(track(cases, "prompts")):
        turns = list(itertools.product(services, METHODS))
        for name, method in turns if number % 2 else reversed(turns):
            outcome = services[name].run(method, case)
            measured[name][method].append(outcome.tokens_per_second)
    return measured


def show(console: Console, said: dict[str, Any], profile: str) -> None:
    """The figures as tables."""
    table = Table(title=f"held-out text, {said['quality']['tokens']} tokens")
    for column in ("", *FORMATS):
        table.add_column(column, justify="right" if column else "left")
    loss, same = said["quality"]["loss"], said["quality"]["same_most_likely"]
    table.add_row("loss, nats a token", *(f"{loss[name]:.4f}" for name in FORMATS))
    table.add_row("same most likely token", *(f"{same[name]:.1%}" for name in FORMATS))
    console.print(table)
    table = Table(title=f"tokens a second, profile {profile}, medians")
    for column in ("", *FORMATS, "ratio"):
        table.add_column(column, justify="right" if column else "left")
    by_format = said["tokens_per_second"]
    for method in METHODS:
        whole, rounded = (by_format[name][method] for name in FORMATS)
        table.add_row(method, f"{whole:.1f}", f"{rounded:.1f}", f"{rounded / whole:.2f}x")
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", choices=PROFILES, default="300M")
    parser.add_argument("--repeats", type=int, default=16, help="prompts that are continued")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each")
    parser.add_argument("--out", type=Path, default=RESULTS / "quantization")
    options = parser.parse_args(arguments)
    console = Console()
    said: dict[str, Any] = {"machine": describe_machine(), "profile": options.profile}
    said["quality"] = quality()
    workload = Workload(
        name="completion", material=prompts.completion(8), tokens=options.tokens,
        temperatures=(TEMPERATURE,),
    )  # fmt: skip
    profile = PROFILES[options.profile]
    with contextlib.ExitStack() as stack:
        services = {}
        for name, told in FORMATS.items():
            config = stack_of(profile, available_cores(), quantization=told)
            console.print(f"starting the services, {name} ...")
            services[name] = stack.enter_context(running(config, lambda _: None))
        said["models"] = {
            name: describe_model(one.info().verifier) for name, one in services.items()
        }
        measured = speeds(services, workload, options.repeats)
    said["tokens_per_second"] = {
        name: {method: round(statistics.median(found), 2) for method, found in by_method.items()}
        for name, by_method in measured.items()
    }
    show(console, said, options.profile)
    options.out.with_suffix(".json").write_text(json.dumps(said, indent=2) + "\n")


if __name__ == "__main__":
    main()
