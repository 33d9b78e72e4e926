"""`make bench`: our services against transformers' own `generate`, in one run.

    python -m benchmarks.run [--quick] [--minutes 8] [--profiles bundled,300M]

Writes a table to the terminal and OUT.json and OUT.svg beside each other. docs/benchmarks.md says
what the columns mean.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import plot, table
from benchmarks.machine import available_cores, describe_machine, describe_model
from benchmarks.measure import measure
from benchmarks.prompts import WORKLOADS, Missing
from benchmarks.results import Results, Sample, rows
from benchmarks.services import Services, running
from benchmarks.systems import ABLATION, METHODS, PLAIN, PROFILES, Profile, System
from benchmarks.transformers_system import loaded
from benchmarks.workload import Workload
from draftloop.config import REPOSITORY
from draftloop.errors import DraftloopError
from orchestrator.launcher import StackConfig, interruptible

RESULTS = REPOSITORY / "benchmarks" / "results"
QUICK = {"minutes": 1.5, "prompts": 2, "tokens": 32}
FULL = {"minutes": 8.0, "prompts": 8, "tokens": 64}
COMPARED = [name for name in METHODS if not name.startswith(ABLATION)]
INTERRUPTED = 130  # what shells report after Ctrl-C


@dataclass(slots=True)
class Bench:
    """A run under way: what was asked for, what has been measured."""

    settings: argparse.Namespace
    console: Console
    deadline: float
    samples: list[Sample] = field(default_factory=list)
    profiles: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self) -> None:
        """Profile by profile; each may use its share of the time that is left."""
        profiles = [PROFILES[name] for name in self.settings.profiles]
        for done, profile in enumerate(profiles):
            share = profile.weight / sum(other.weight for other in profiles[done:])
            now = time.monotonic()
            self._measure(profile, now + share * (self.deadline - now))

    def _measure(self, profile: Profile, deadline: float) -> None:
        settings = self.settings
        workloads = self._workloads(profile)
        config = StackConfig(
            port=0,
            drafter_port=0,
            verifier_port=0,
            dtype=settings.dtype,
            inflate=profile.inflate,
            verifier_flags=("--threads", str(settings.threads)),
        )
        self.console.print(f"[bold]{profile.title}[/]: starting the services ...")
        with contextlib.ExitStack() as stack:
            services = stack.enter_context(running(config, lambda _: None))
            self.profiles[profile.name] = describe_pair(profile, services)
            systems: dict[str, System] = {"draftloop": services}
            if any(METHODS[name].system == "transformers" for name in settings.strategies):
                self.console.print("loading the models into transformers ...")
                systems["transformers"] = stack.enter_context(loaded(config, settings.threads))
            progress = stack.enter_context(_progress(self.console))
            task = progress.add_task(profile.name, total=deadline - time.monotonic(), doing="")
            began = time.monotonic()

            def tick(doing: str) -> None:
                progress.update(task, completed=time.monotonic() - began, doing=doing)

            for done, workload in enumerate(workloads):
                now = time.monotonic()
                until = now + (deadline - now) / (len(workloads) - done)
                methods = methods_for(workload.name, settings.strategies)
                if any(METHODS[name].pool == "warm" for name in methods):
                    for case in workload.warming():
                        tick(f"filling a pool: {workload.name}, {case.prompt.file}")
                        services.warm(case)
                measured = measure(profile, systems, methods, workload, deadline=until, tick=tick)
                self.samples.extend(measured)
            progress.update(task, total=1, completed=1, doing="done")

    def _workloads(self, profile: Profile) -> list[Workload]:
        """Those asked for that are at hand; by default the as-is pair only completes."""
        settings = self.settings
        known = ["completion"] if not profile.inflate else list(WORKLOADS)
        found: list[Workload] = []
        for name in settings.workloads or known:
            try:
                material = WORKLOADS[name](settings.prompts)
            except Missing as missing:
                self.console.print(f"{name} is left out: {missing}")
                continue
            temperatures = tuple(settings.temperature)
            found.append(
                Workload(
                    name=name, material=material, tokens=settings.tokens, temperatures=temperatures
                )
            )
        return found


def methods_for(workload: str, chosen: Sequence[str]) -> list[str]:
    """transformers is compared on completion only: the other workloads compare strategies."""
    if workload == "completion":
        return list(chosen)
    return [name for name in chosen if METHODS[name].system == "draftloop"]


def describe_pair(profile: Profile, services: Services) -> dict[str, Any]:
    """The models of a profile as the services describe them."""
    info = services.info()
    assert info.drafter is not None, "the stack starts one"
    return {
        "title": profile.title,
        "verifier": describe_model(info.verifier),
        "drafter": describe_model(info.drafter),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, shows, writes. Returns the exit status."""
    console = Console()
    settings = read_settings(arguments)
    machine = describe_machine()
    bench = Bench(settings, console, time.monotonic() + 60 * settings.minutes)
    try:
        with interruptible():
            bench.run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except DraftloopError as error:
        console.print(f"[red]{error}[/]", highlight=False)
        return 1
    summary = rows(bench.samples)
    table.show(console, summary)
    results = Results(
        settings={key: value for key, value in vars(settings).items() if key != "out"},
        machine={**machine, "load_average_at_end": describe_machine()["load_average"]},
        profiles=bench.profiles,
        rows=summary,
        samples=[sample.as_json() for sample in bench.samples],
    )
    # The name may hold dots, so the suffix is appended and not replaced.
    json_file, plot_file = (Path(f"{settings.out}{suffix}") for suffix in (".json", ".svg"))
    results.write(json_file)
    plot.draw(summary, plot_file)
    console.print(f"written: {json_file} and {plot_file}", highlight=False)
    return 0


def read_settings(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; what it leaves open follows `--quick`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a look in a minute or two")
    parser.add_argument("--minutes", type=float, help="time for everything (default: 8)")
    parser.add_argument("--prompts", type=int, help="held-out prompts (default: 8)")
    parser.add_argument("--tokens", type=int, help="tokens per continuation (default: 64)")
    parser.add_argument("--temperature", type=float, action="append",
                        help="repeatable; the first is the main one (default: 0.7, 0)")  # fmt: skip
    parser.add_argument("--profiles", type=_names(PROFILES), default=["bundled", "300M"])
    parser.add_argument("--workloads", type=_names(WORKLOADS),
                        help=f"of: {', '.join(WORKLOADS)}")  # fmt: skip
    parser.add_argument("--strategies", type=_names(METHODS), default=COMPARED,
                        help=f"of: {', '.join(METHODS)}")  # fmt: skip
    parser.add_argument("--ablation", action="store_true",
                        help="Ouroboros' four parts one by one, and nothing else")  # fmt: skip
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=available_cores(),
                        help="CPU threads of the target model, in both systems")  # fmt: skip
    parser.add_argument("--out", default=str((RESULTS / "bench").relative_to(REPOSITORY)),
                        help="path of the results without suffix")  # fmt: skip
    settings = parser.parse_args(arguments)
    for name, value in (QUICK if settings.quick else FULL).items():
        if getattr(settings, name) is None:
            setattr(settings, name, value)
    settings.temperature = settings.temperature or [0.7, 0.0]
    if settings.ablation:
        settings.strategies = [name for name in METHODS if name.startswith(ABLATION)]
    settings.strategies = [name for name in METHODS if name in {*settings.strategies, PLAIN}]
    return settings


def _names(known: Iterable[str]) -> Any:
    allowed = list(known)

    def split(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        unknown = [name for name in names if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"must be of {', '.join(allowed)}, separated by commas; got {', '.join(unknown)}"
            )
        return names

    return split


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[doing]}"),
        console=console,
    )


if __name__ == "__main__":
    sys.exit(main())
