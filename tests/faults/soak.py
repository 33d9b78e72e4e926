"""`python -m tests.faults.soak --kills 200`: processes die, no request is lost.

Sixteen clients send requests by gRPC and HTTP while processes of all roles are killed and frozen at
random moments. A second replica of the role is always there; a supervisor restarts what was killed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from draftloop.openmp import prefer_passive_waiting
from tests.faults.fleet import Fleet, Supervisor
from tests.faults.load import CONCURRENCY, Load, Tally, decode_without_faults, make_cases

KILLS = 200
# One fault in this many is a freeze.
FREEZES_EVERY = 4
LONGEST_FREEZE_S = 1.5
LONGEST_PAUSE_S = 0.5
STALLED_S = 300.0


def soak(
    fleet: Fleet, kills: int, rng: random.Random, report: Callable[[str], None] = lambda _: None
) -> Counter[str]:
    """Kills this many processes and freezes others; returns the number of faults by kind.

    Calls `report` at every kill. Fails if for minutes no replica may be killed.
    """
    faults: Counter[str] = Counter()
    with Supervisor(fleet):
        while faults.total() - _freezes(faults) < kills:
            name = _victim(fleet, rng)
            role = fleet.processes[name].role
            if rng.randrange(FREEZES_EVERY) == 0:
                fleet.freeze(name, rng.uniform(0.1, LONGEST_FREEZE_S))
                faults[f"{role} frozen"] += 1
            else:
                fleet.processes[name].kill()
                faults[f"{role} killed"] += 1
                report(f"{role} killed")
            time.sleep(rng.uniform(0, LONGEST_PAUSE_S))
    return faults


def _freezes(faults: Counter[str]) -> int:
    return sum(count for fault, count in faults.items() if fault.endswith("frozen"))


def _victim(fleet: Fleet, rng: random.Random) -> str:
    deadline = time.monotonic() + STALLED_S
    while not (spare := fleet.spare()):
        assert time.monotonic() < deadline, "nobody has come back"
        time.sleep(0.02)
    return rng.choice(spare)


def summarize(counts: Counter[str], tally: Tally, seconds: float) -> str:
    """The faults and what the clients saw of them."""
    faults = ", ".join(f"{count} times {fault}" for fault, count in sorted(counts.items()))
    return (
        f"in {seconds:.0f} s: {faults}\n"
        f"{tally.answered} requests answered, {CONCURRENCY} at a time; "
        f"{tally.retried} connections lost with their orchestrator and asked again\n"
        f"requests lost: {len(tally.lost)}; outputs that differ: {len(tally.differing)}"
    )


def run(kills: int, seed: int) -> int:
    """Runs the whole soak with a progress bar; returns the exit status."""
    console = Console(stderr=True)
    columns = (TextColumn("kills"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.description}"))  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, Fleet(Path(folder)) as fleet:
        cases = make_cases()
        expected = decode_without_faults(fleet.orchestrators[0], cases)
        started = time.monotonic()
        with (
            Progress(*columns, console=console) as progress,
            Load(fleet.orchestrators, cases, expected) as load,
        ):
            bar = progress.add_task("", total=kills)

            def report(fault: str) -> None:
                tally = load.tally
                text = f"{fault}; {tally.answered} answered, {len(tally.lost)} lost"
                progress.update(bar, advance=1, description=text)

            faults = soak(fleet, kills, random.Random(seed), report)
        fleet.wait_until_complete()
        fleet.wait_until_free()
        tally = load.tally
        console.print(summarize(faults, tally, time.monotonic() - started), highlight=False)
        for problem in [*tally.lost, *tally.differing][:20]:
            console.print(problem, highlight=False)
    return 1 if tally.lost or tally.differing else 0


def main() -> int:
    """Reads the flags."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    prefer_passive_waiting()
    return run(options.kills, options.seed)


if __name__ == "__main__":
    sys.exit(main())
