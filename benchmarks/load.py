"""`python -m benchmarks.load`: concurrent requests, with drafts and without.

    python -m benchmarks.load [--profile 300M] [--requests 1,2,4,8,16] [--minutes 6]
    python -m benchmarks.load --server HOST:PORT [--prompts FILE] [--strategies opt_tree]

The second form measures a running server: plain decoding, its default strategy and those named.

A closed loop: each client sends its next request as soon as it has an answer. Lengths of answers
vary around `--tokens`. For every number of clients, the strategies take turns with the same
requests until the time is up. The results are written to OUT.json, OUT.md and OUT.svg; after Ctrl-C
or an error, those measured until then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console

from benchmarks import load_plot
from benchmarks.load_settings import COLD, read_settings
from benchmarks.load_table import Run, page, summed
from benchmarks.machine import describe_deployment, describe_machine
from benchmarks.measure import Tick, method_order
from benchmarks.output import exit_status, prepare, progress_on, run_command, with_suffixes
from benchmarks.prompts import Prompt, completion, cut, prompts_in
from benchmarks.services import Services, connected, running, stack_of
from benchmarks.systems import METHODS, PLAIN, PROFILES, unserved
from benchmarks.workload import FIRST_SEED, Case
from draftloop.completion import DeploymentInfo
from draftloop.errors import InvalidInput
from draftloop.speculation import OPT_TREE, SPECULATIVE

STRATEGIES = (PLAIN, SPECULATIVE, OPT_TREE, "fused cold")
PROMPTS = 16
# Requests of one run per client; towards the end of a run, fewer run at the same time.
WAVES = 3
# The shortest answer and the difference to the longest, relative to `--tokens`. If all had the same
# length, plain decoding's would end together, and the next prompts would share one forward.
SHORTEST, SPREAD = 0.5, 1.0
GOLDEN = (5**0.5 - 1) / 2  # fractional parts of its multiples are evenly distributed


@dataclass(slots=True)
class Record:
    """What is measured, and the runs so far, by number of concurrent requests."""

    strategies: list[str] = field(default_factory=list)
    models: dict[str, Any] = field(default_factory=dict)
    runs: dict[int, list[dict[str, Run]]] = field(default_factory=lambda: defaultdict(list))


class Loop:
    """A number of concurrent clients on one running stack."""

    def __init__(
        self, services: Services, prompts: Sequence[Prompt], tokens: int, temperature: float
    ) -> None:
        self._services, self._prompts = services, prompts
        self._tokens, self._temperature = tokens, temperature

    def run(self, strategy: str, sessions: int, number: int) -> Run:
        """Runs the `number`th set of requests with a strategy."""
        cases = self._cases(WAVES * sessions, number)
        began = time.perf_counter()
        outcomes = self._services.run_together(strategy, cases, sessions)
        return Run(time.perf_counter() - began, outcomes)

    def _cases(self, count: int, number: int) -> list[Case]:
        return [
            Case(
                prompt=self._prompts[(number + place) % len(self._prompts)],
                tokens=self._length(place + number),
                temperature=self._temperature,
                seed=FIRST_SEED + 1000 * number + place,
            )
            for place in range(count)
        ]

    def _length(self, number: int) -> int:
        """Tokens of an answer; every run has answers from short to long, in mixed order."""
        return max(1, round(self._tokens * (SHORTEST + SPREAD * (GOLDEN * number % 1.0))))


def measure(
    loop: Loop, strategies: Sequence[str], numbers: Sequence[int], seconds: float, tick: Tick
) -> Iterator[tuple[int, dict[str, Run]]]:
    """Yields runs of all strategies for each number of sessions, which share the time evenly."""
    deadline = time.monotonic() + seconds
    for done, sessions in enumerate(numbers):
        now = time.monotonic()
        until = now + (deadline - now) / (len(numbers) - done)
        number, longest = 0, 0.0
        while not number or time.monotonic() + longest <= until:
            began = time.monotonic()
            runs: dict[str, Run] = {}
            for strategy in method_order(strategies, number):
                tick(f"{sessions} at a time, {strategy}")
                runs[strategy] = loop.run(strategy, sessions, number)
            yield sessions, runs
            longest = max(longest, time.monotonic() - began)
            number += 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, writes and prints the results; returns the exit status."""
    settings = read_settings(arguments, __doc__)
    prepare(*with_suffixes(settings.out, ".json", ".md", ".svg"))
    console, machine = Console(), describe_machine()
    record = Record()
    status = exit_status(lambda: collect(settings, console, record), console)
    if record.runs:
        write(settings, machine, record, console)
    return status


def collect(settings: argparse.Namespace, console: Console, record: Record) -> None:
    """Connects to or starts the services, and adds each run of `measure` to the record."""
    prompts = prompts_of(settings)
    with served(settings, console) as services, progress_on(console) as bar:
        info = services.info()
        record.models = describe_deployment(title_of(settings, info), info)
        record.strategies = strategies_of(settings, info)
        loop = Loop(services, prompts, settings.tokens, settings.temperature)
        task = bar.add_task("many requests", total=None, doing="")
        for strategy in record.strategies:
            bar.update(task, doing=f"warming up {strategy}")
            loop.run(strategy, max(settings.sessions), 0)
        began, seconds = time.monotonic(), 60 * settings.minutes

        def tick(doing: str) -> None:
            bar.update(task, total=seconds, completed=time.monotonic() - began, doing=doing)

        for sessions, runs in measure(loop, record.strategies, settings.sessions, seconds, tick):
            record.runs[sessions].append(runs)
        bar.update(task, total=1, completed=1, doing="done")


def prompts_of(settings: argparse.Namespace) -> list[Prompt]:
    """The prompts of the file, uncut; without a file, held-out prompts cut to the given length."""
    if settings.prompts:
        return prompts_in(settings.prompts)
    return [cut(prompt, settings.prompt_tokens) for prompt in completion(PROMPTS).measured]


def served(
    settings: argparse.Namespace, console: Console
) -> contextlib.AbstractContextManager[Services]:
    """A client of the running server, or of the profile's services, which run for the context."""
    if settings.server:
        return connected(settings.server)
    profile = PROFILES[settings.profile]
    console.print(f"{profile.title}: starting the services ...", highlight=False)
    config = stack_of(profile, settings.threads, quantization=settings.quantization)
    return running(config, lambda _: None)


def title_of(settings: argparse.Namespace, info: DeploymentInfo) -> str:
    """The models, for a heading."""
    if not settings.server:
        return PROFILES[settings.profile].title
    drafts = f"drafts by {info.drafter.model_name}" if info.drafter else "no draft model"
    return f"{info.verifier.model_name}, {drafts}"


def strategies_of(settings: argparse.Namespace, info: DeploymentInfo) -> list[str]:
    """Strategies to measure: plain decoding first, then a server's default, then those named.

    Raises InvalidInput for a named strategy that the server's drafter does not serve.
    """
    if not settings.server:
        return list(dict.fromkeys([PLAIN, *(settings.strategies or STRATEGIES)]))
    named = settings.strategies or []
    for name, reason in unserved(named, info.drafter.strategies if info.drafter else ()).items():
        raise InvalidInput("strategies", reason, name)
    own = [name for name in COLD if METHODS[name].speculation.strategy == info.default_strategy]
    return list(dict.fromkeys([PLAIN, *own[:1], *named]))  # others are its parts


def write(
    settings: argparse.Namespace, machine: dict[str, Any], record: Record, console: Console
) -> None:
    """Writes the results and the picture, and prints the table."""
    title, rows = record.models["title"], summed(record.runs, record.strategies)
    text = page(title, rows)
    console.print(text, markup=False)
    results: dict[str, Any] = {
        "machine": machine,
        "models": record.models,
        "settings": {
            **{key: value for key, value in vars(settings).items() if key != "out"},
            "strategies": record.strategies,
        },
        "rows": [asdict(row) for row in rows],
    }
    as_json, as_page, picture = with_suffixes(settings.out, ".json", ".md", ".svg")
    as_json.write_text(json.dumps(results, indent=1, default=str) + "\n", encoding="utf-8")
    as_page.write_text(text, encoding="utf-8")
    lines: dict[str, dict[int, float]] = defaultdict(dict)
    for entry in rows:
        lines[entry.strategy][entry.sessions] = entry.tokens_per_second
    load_plot.draw(title, lines, picture)


if __name__ == "__main__":
    run_command(main)
