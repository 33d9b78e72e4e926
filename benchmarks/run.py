"""`make bench`: our strategies and transformers' own `generate` against plain decoding.

    python -m benchmarks.run [--full] [--minutes 4] [--profiles bundled,300M] [--resume]

Prints tables, and writes OUT.json, OUT.md, a picture per profile and one of the estimates.
docs/benchmarks.md describes the columns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import calibration_plot, plot, table
from benchmarks.calibration import estimates
from benchmarks.journal import Journal
from benchmarks.machine import describe_deployment, describe_machine
from benchmarks.measure import Plan, Tick, measure
from benchmarks.output import exit_status, prepare, print_error, progress_on, with_suffixes
from benchmarks.prompts import available_materials
from benchmarks.results import Results, rows
from benchmarks.services import Services, running, stack_of
from benchmarks.settings import read_settings, recorded_settings
from benchmarks.systems import METHODS, PROFILES, Profile, System, asks_drafter, unserved
from benchmarks.transformers_system import loaded
from benchmarks.workload import Workload
from draftloop.errors import DraftloopError, InvalidInput


@dataclass(slots=True)
class Bench:
    """A running benchmark: its settings, its samples so far, and what could not be measured."""

    settings: argparse.Namespace
    console: Console
    journal: Journal
    deadline: float
    left_out: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Measures one profile after another; each gets its share of the remaining time."""
        workloads = self._workloads()
        profiles = [PROFILES[name] for name in self.settings.profiles]
        for done, profile in enumerate(profiles):
            plans = self._plans(profile, workloads)
            share = profile.weight / sum(other.weight for other in profiles[done:])
            now = time.monotonic()
            if now < self.deadline and any(plan.waiting for plan in plans):
                self._measure(profile, plans, now + share * (self.deadline - now))

    def _measure(self, profile: Profile, plans: list[Plan], deadline: float) -> None:
        """Starts the services once and measures all cells of the profile."""
        self.console.print(f"[bold]{profile.title}[/]: starting the services ...")
        settings = self.settings
        config = stack_of(
            profile,
            settings.threads,
            settings.dtype,
            quantization=settings.quantization,
            device=settings.device,
            draft_device=settings.draft_device,
        )
        with contextlib.ExitStack() as stack:
            services = stack.enter_context(running(config, lambda _: None))
            info = services.info()
            self.journal.add_profile(profile.name, describe_deployment(profile.title, info))
            served = info.drafter.strategies if info.drafter else ()
            self._drop(unserved(methods_of(plans), served), plans)
            systems: dict[str, System] = {"draftloop": services}
            if any(METHODS[name].system == "transformers" for name in self.settings.strategies):
                self.console.print("loading the models into transformers ...")
                systems["transformers"] = stack.enter_context(
                    loaded(config, settings.threads, profile.draft_inflate)
                )
            progress = stack.enter_context(progress_on(self.console))
            task = progress.add_task(profile.name, total=deadline - time.monotonic(), doing="")
            began = time.monotonic()

            def tick(doing: str) -> None:
                progress.update(task, completed=time.monotonic() - began, doing=doing)

            self._warm_up(systems, plans, tick)
            fill_pools(services, plans, tick)
            for repetition in measure(
                profile, systems, plans, deadline=deadline, last_call=self.deadline, tick=tick
            ):
                self.journal.add(repetition)
            progress.update(task, total=1, completed=1, doing="done")

    def _warm_up(self, systems: dict[str, System], plans: list[Plan], tick: Tick) -> None:
        """Runs one short request per method; a method that the server does not know is left out."""
        for method in methods_of(plans):
            tick(f"warming up {method}")
            workload = next(plan.workload for plan in plans if method in plan.methods)
            try:
                outcome = systems[METHODS[method].system].run(method, workload.warm_up())
            except InvalidInput as error:
                self._drop({method: str(error)}, plans)
                continue
            if outcome.fallback_rounds and not asks_drafter(method):
                self._drop({method: "the server has other drafts for this strategy"}, plans)

    def _drop(self, reasons: Mapping[str, str], plans: Sequence[Plan]) -> None:
        for method, reason in reasons.items():
            self._leave_out(f"{method}: {reason}")
        for plan in plans:
            plan.methods = [name for name in plan.methods if name not in reasons]

    def _plans(self, profile: Profile, workloads: list[Workload]) -> list[Plan]:
        return [
            Plan(
                workload,
                methods_for(workload.name, self.settings.strategies),
                self.journal.seeds(profile.name, workload.name),
            )
            for workload in workloads
        ]

    def _workloads(self) -> list[Workload]:
        """The requested workloads whose prompts are available."""
        settings = self.settings
        return [
            Workload(
                name=name,
                material=material,
                tokens=settings.tokens,
                temperatures=tuple(settings.temperature),
            )
            for name, material in available_materials(
                settings.workloads, settings.prompts, self._leave_out
            )
        ]

    def _leave_out(self, reason: str) -> None:
        if reason not in self.left_out:
            self.left_out.append(reason)
            self.console.print(f"left out: {reason}", highlight=False)

    def results(self, machine: dict[str, Any]) -> Results:
        """The results so far, and a list of cells without any."""
        samples = self.journal.samples
        empty = empty_cells(
            self.settings, {(s.profile, s.workload, s.temperature) for s in samples}
        )
        load = describe_machine()["load_average"]
        return Results(
            settings=recorded_settings(self.settings),
            machine={**machine, "load_average_at_end": load},
            profiles=self.journal.profiles,
            rows=rows(samples),
            samples=[sample.as_json() for sample in samples],
            calibration=estimates(samples),
            left_out=[*self.left_out, *empty],
        )


def methods_for(workload: str, chosen: Sequence[str]) -> list[str]:
    """Methods of a workload; transformers is compared on completion only."""
    if workload == "completion":
        return list(chosen)
    return [name for name in chosen if METHODS[name].system == "draftloop"]


def methods_of(plans: Sequence[Plan]) -> list[str]:
    """The methods of all plans, without duplicates."""
    return list(dict.fromkeys(name for plan in plans for name in plan.methods))


def fill_pools(services: Services, plans: Sequence[Plan], tick: Tick) -> None:
    """Fills the pools of warm methods from prompts that are not measured."""
    for plan in plans:
        if any(METHODS[name].pool == "warm" for name in plan.methods):
            for case in plan.workload.warming():
                tick(f"filling a pool: {case.workload}, {case.prompt.file}")
                services.warm(case)


def empty_cells(settings: argparse.Namespace, measured: set[tuple[str, str, float]]) -> list[str]:
    """Descriptions of requested cells that have no run."""
    return [
        f"{PROFILES[profile].title}, {workload}, {table.sampling(temperature)}: n = 0"
        for profile in settings.profiles
        for workload in settings.workloads
        for temperature in settings.temperature
        if (profile, workload, temperature) not in measured
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; returns the exit status. If interrupted, keeps what it has."""
    console = Console()
    settings = read_settings(arguments, __doc__.splitlines()[0])
    journal_file, results_file = with_suffixes(settings.out, ".partial.jsonl", ".json")
    try:
        machine = describe_machine(settings.device)
        identity = identity_of(recorded_settings(settings), machine)
        if settings.resume and not journal_file.exists() and has_identity(results_file, identity):
            console.print(f"measured already: {results_file}", highlight=False)
            return 0
        prepare(journal_file, *with_suffixes(settings.out, ".json", ".md"))
        open_journal = Journal.resume if settings.resume else Journal.begin
        bench = Bench(
            settings,
            console,
            open_journal(journal_file, identity),
            time.monotonic() + 60 * settings.minutes,
        )
    except (DraftloopError, OSError) as error:
        print_error(console, error)
        return 1
    status = run_bench(bench)
    if bench.journal.samples:
        status = write_results(bench, machine) or status
    elif not status:
        console.print("[red]--minutes: the time was up before anything was measured[/]")
        status = 1
    if status:
        console.print(f"go on with --resume: {journal_file} is kept", highlight=False)
    else:
        journal_file.unlink()
    return status


def identity_of(settings: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, Any]:
    """What two runs must have in common to be joined; the time limit may differ."""
    unbounded = {name: value for name, value in settings.items() if name != "minutes"}
    # The run's own results, if they are tracked by git, make the tree dirty.
    commit = machine["commit"].removesuffix("-dirty")
    return {**unbounded, "commit": commit, "cpu": machine["cpu"], "gpu": machine["gpu"]}


def has_identity(results_file: Path, identity: Mapping[str, Any]) -> bool:
    """Whether the file holds results of a run with this identity."""
    if not results_file.exists():
        return False
    found = Results.read(results_file)
    try:
        found_identity = identity_of(found.settings, found.machine)
    except KeyError:  # written by an earlier version
        return False
    return bool(found_identity == json.loads(json.dumps(identity)))


def run_bench(bench: Bench) -> int:
    """Measures; returns the exit status. However it ends, the journal has what was measured."""
    try:
        return exit_status(bench.run, bench.console)
    except Exception:
        bench.console.print_exception()
        return 1


def write_results(bench: Bench, machine: dict[str, Any]) -> int:
    """Prints and writes the results so far; returns the exit status."""
    try:
        write(bench.results(machine), bench.settings.out, bench.console)
    except OSError as error:
        print_error(bench.console, error)
        return 1
    return 0


def write(results: Results, out: str, console: Console) -> None:
    """Prints tables and writes all files, all from the rows as the file has them."""
    results = results.as_written()
    table.show(console, results.rows)
    for entry in results.left_out:
        console.print(f"not measured: {entry}", highlight=False)
    as_json, as_page = with_suffixes(out, ".json", ".md")
    results.write(as_json)
    as_page.write_text(table.page(results), encoding="utf-8")
    for profile in dict.fromkeys(row.profile for row in results.rows):
        found = [row for row in results.rows if row.profile == profile]
        plot.draw(found, Path(f"{out}-{profile}.svg"))
    if results.calibration:
        calibration_plot.draw(results.calibration, Path(f"{out}-calibration.svg"))
    console.print(f"written: {out}.json, .md and pictures", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
