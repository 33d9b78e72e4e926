"""`python -m benchmarks.servers --server NAME=URL ...`: running servers side by side.

    python -m benchmarks.export --out pair --gguf f16
    python -m benchmarks.servers --server "draftloop=http://127.0.0.1:8000" \\
        --server 'llama.cpp=http://127.0.0.1:8080 {"cache_prompt": false}'

Every server continues the same prompts, in an order drawn at random for each, over OpenAI's
completions API. They must have the bundled tokenizer: the models that `benchmarks.export` writes.
The results are written to OUT.json and OUT.md; after Ctrl-C or an error, those measured until then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from benchmarks.http_server import TIMEOUT_S, HttpServer, read_server
from benchmarks.load_settings import read_numbers
from benchmarks.machine import describe_machine
from benchmarks.measure import Tick, method_order
from benchmarks.output import exit_status, prepare, progress_on, run_command, with_suffixes
from benchmarks.prompts import WORKLOADS, Prompt, material_of
from benchmarks.servers_table import Cell, Run, page, summed
from benchmarks.settings import MIN_TOKENS, at_least, default_output, names, read_temperature
from benchmarks.workload import FIRST_SEED, Case


@dataclass(slots=True)
class Record:
    """The runs so far: those of a repetition by server, in the order of the command line."""

    runs: list[tuple[Cell, dict[str, Run]]] = field(default_factory=list)
    models: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, in which order."""

    prompts: dict[str, list[Prompt]]
    temperatures: Sequence[float]
    requests: Sequence[int]
    tokens: int

    def repetitions(self) -> Iterator[tuple[Cell, list[Case]]]:
        """Every cell once with the first prompts, then once with the next ones, and so on."""
        longest = max(map(len, self.prompts.values()))
        for number in range(longest):
            for workload, prompts in self.prompts.items():
                for temperature in self.temperatures:
                    for requests in self.requests:
                        cell = Cell(workload, temperature, requests)
                        yield (
                            cell,
                            [
                                self._case(cell, prompts[(number + place) % len(prompts)], number)
                                for place in range(requests)
                            ],
                        )

    def _case(self, cell: Cell, prompt: Prompt, number: int) -> Case:
        return Case(
            prompt=prompt,
            tokens=self.tokens,
            temperature=cell.temperature,
            seed=FIRST_SEED + number,
            workload=cell.workload,
        )


async def measure(
    servers: Sequence[HttpServer], plan: Plan, seconds: float, record: Record, tick: Tick
) -> None:
    """Adds runs to the record until the time is up or every prompt has been continued."""
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
        _, cases = next(plan.repetitions())
        for server in servers:
            record.models[server.name] = await server.model(client)
            tick(f"warming up {server.name}")
            await _run(client, server, record.models[server.name], cases)
        deadline = time.monotonic() + seconds
        by_name = {server.name: server for server in servers}
        for number, (cell, cases) in enumerate(plan.repetitions()):
            if time.monotonic() > deadline:
                return
            runs: dict[str, Run] = {}
            for name in method_order(list(by_name), number):
                tick(f"{cell.workload}, {name}")
                runs[name] = await _run(client, by_name[name], record.models[name], cases)
            record.runs.append((cell, {name: runs[name] for name in by_name}))


async def _run(
    client: httpx.AsyncClient, server: HttpServer, model: str, cases: Sequence[Case]
) -> Run:
    began = time.perf_counter()
    answers = await asyncio.gather(*(server.complete(client, model, case) for case in cases))
    return Run(time.perf_counter() - began, answers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, writes and prints the results; returns the exit status."""
    settings = _settings(arguments)
    prepare(*with_suffixes(settings.out, ".json", ".md"))
    console, machine = Console(), describe_machine()
    record = Record()
    status = exit_status(lambda: collect(settings, console, record), console)
    if record.runs:
        write(settings, machine, record, console)
    return status


def collect(settings: argparse.Namespace, console: Console, record: Record) -> None:
    """Fills the record with the runs of all servers."""
    materials = material_of(settings.workloads, settings.prompts)
    plan = Plan(
        {name: material.measured for name, material in materials.items()},
        settings.temperature or [0.8],
        settings.requests,
        settings.tokens,
    )
    with progress_on(console) as bar:
        task = bar.add_task("servers", total=None, doing="")
        began, seconds = time.monotonic(), 60 * settings.minutes

        def tick(doing: str) -> None:
            bar.update(task, total=seconds, completed=time.monotonic() - began, doing=doing)

        asyncio.run(measure(settings.server, plan, seconds, record, tick))
        bar.update(task, total=1, completed=1, doing="done")


def write(
    settings: argparse.Namespace, machine: dict[str, Any], record: Record, console: Console
) -> None:
    """Writes the results, and prints the table."""
    rows = summed(record.runs)
    text = page(rows)
    console.print(text, markup=False)
    results: dict[str, Any] = {
        "machine": machine,
        "servers": [{**asdict(s), "model": record.models[s.name]} for s in settings.server],
        "settings": {
            key: value for key, value in vars(settings).items() if key not in ("out", "server")
        },
        "rows": [asdict(row) for row in rows],
    }
    as_json, as_page = with_suffixes(settings.out, ".json", ".md")
    as_json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    as_page.write_text(text, encoding="utf-8")


def _settings(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", type=read_server, action="append", required=True,
                        help="may be repeated; the first is the reference")  # fmt: skip
    parser.add_argument("--workloads", type=names(WORKLOADS),
                        default=["completion", "editing", "agent"])  # fmt: skip
    parser.add_argument("--temperature", type=read_temperature, action="append",
                        help="may be repeated (default: 0.8)")  # fmt: skip
    parser.add_argument("--requests", type=read_numbers, default=[1], help="at a time")
    parser.add_argument("--prompts", type=at_least(1), default=8, help="of each workload")
    parser.add_argument("--tokens", type=at_least(MIN_TOKENS), default=64, help="of an answer")
    parser.add_argument("--minutes", type=float, default=10.0, help="time for all runs")
    parser.add_argument("--out", type=Path, default=default_output("servers"),
                        help="path without suffix")  # fmt: skip
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_command(main)
