"""`python -m benchmarks.phrase_log`: the phrase log over a real Redis, which it starts and kills.

Measures the replay of a long log at startup, the cost of publishing for the caller, and the longest
stall of a caller while Redis dies and comes back.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.phrase_index import zipf_text
from draftloop.calibration import Calibration
from draftloop.phrase import MAX_CONTEXT, Phrase
from draftloop.tree import DraftBudget
from phrase_store import store as phrases
from phrase_store.config import PhraseSettings
from phrase_store.index import grow
from phrase_store.log import LogOptions, open_log
from phrase_store.namespace import Namespace, namespace_name
from phrase_store.records import encode

RECORDS = 1_000_000
WRITTEN_AT_ONCE = 5000
COMMITTED_TOKENS, PREDICTED_TOKENS = 4, 2  # per round: emitted, and on a rejected branch
CALLS = 2000
OUTAGE_S = 5.0
NAMESPACE = namespace_name("benchmark", "")
TEXT = zipf_text(1_000_000, seed=1)


def phrases_of_round(chance: random.Random) -> list[Phrase]:
    """The phrases that one round writes to the log."""
    middle = chance.randrange(MAX_CONTEXT, len(TEXT) - MAX_CONTEXT)
    context = tuple(TEXT[middle - MAX_CONTEXT : middle])
    tokens = tuple(TEXT[middle : middle + COMMITTED_TOKENS])
    other = chance.randrange(len(TEXT) - PREDICTED_TOKENS)
    predicted = tuple(TEXT[other : other + PREDICTED_TOKENS])
    return [Phrase(context, tokens), Phrase(context, predicted, committed=False)]


@contextlib.contextmanager
def redis_server(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server process without persistence."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
        process = subprocess.Popen(["redis-server", *flags], stdout=subprocess.DEVNULL)
        try:
            while socket.socket().connect_ex(("127.0.0.1", port)):
                time.sleep(0.02)
            yield process
        finally:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port on loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fill(url: str, records: int) -> None:
    """Writes `records` rounds to the log."""
    chance = random.Random(1)
    log = open_log(url, NAMESPACE, LogOptions(max_length=2 * records, operation_timeout_s=10.0))
    for start in track(range(0, records, WRITTEN_AT_ONCE), f"writing {records:,} records"):
        end = min(start + WRITTEN_AT_ONCE, records)
        log.append([encode(number, phrases_of_round(chance)) for number in range(start, end)])
    log.close()


def look_up(namespace: Namespace, number: int) -> None:
    """A draft of 16 nodes."""
    start = number * 397 % (len(TEXT) - MAX_CONTEXT)
    grow(
        TEXT[start : start + MAX_CONTEXT],
        DraftBudget(max_nodes=16, max_depth=16),
        shared=namespace.index,
        own=None,
        calibration=Calibration(),
    )


def timed(call: Callable[[int], object], number: int) -> float:
    """Milliseconds of one call."""
    began = time.perf_counter()
    call(number)
    return (time.perf_counter() - began) * 1000


def replay(namespace: Namespace) -> tuple[float, float, list[float]]:
    """Seconds until the log is read, CPU seconds of this process, times of look-ups meanwhile."""
    began, cpu_began = time.perf_counter(), time.process_time()
    times: list[float] = []
    while not namespace.wait_replayed(0.005):
        times.append(timed(lambda number: look_up(namespace, number), len(times)))
    return time.perf_counter() - began, time.process_time() - cpu_began, times


def use(namespace: Namespace, seconds: float) -> list[float]:
    """Milliseconds of each look-up with a publish, repeated every 5 milliseconds."""
    chance, ends = random.Random(2), time.perf_counter() + seconds
    times: list[float] = []

    def both(number: int) -> None:
        look_up(namespace, number)
        namespace.publish(number % 100, phrases_of_round(chance))

    while time.perf_counter() < ends:
        times.append(timed(both, len(times)))
        time.sleep(0.005)
    return times


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS, help="records to replay")
    records = parser.parse_args().records
    console = Console()
    if shutil.which("redis-server") is None:
        raise SystemExit("phrase_log: needs redis-server on the path")
    phrases.warm_up()
    port = free_port()
    url = f"redis://127.0.0.1:{port}"
    store = phrases.PhraseStore(PhraseSettings(phrases_url=url, phrases_records=2 * records))
    table = Table(title=f"phrase log, {records:,} records of 2 phrases")
    for column in ("figure", "median", "99 %", "worst"):
        table.add_column(column, justify="left" if column == "figure" else "right")

    def row(name: str, times: list[float]) -> None:
        tail = sorted(times)[int(0.99 * len(times))]
        shown = [f"{value:.2f} ms" for value in (statistics.median(times), tail, max(times))]
        table.add_row(name, *shown)

    with redis_server(port):
        fill(url, records)
        namespace = store.namespace("benchmark")
        seconds, cpu_s, lookups = replay(namespace)
        row("look-up during replay", lookups)
        row("look-up", [timed(lambda n: look_up(namespace, n), n) for n in range(CALLS)])
        chance = random.Random(3)
        rounds = [phrases_of_round(chance) for _ in range(CALLS)]
        row("publish", [timed(lambda n: namespace.publish(n, rounds[n]), n) for n in range(CALLS)])
        row("look-up + publish", use(namespace, OUTAGE_S))
    row("the same, Redis killed", use(namespace, OUTAGE_S))
    with redis_server(port):
        began = time.perf_counter()
        back = []
        while not namespace.figures().reachable:
            back += use(namespace, 0.05)
        back_s = time.perf_counter() - began
        row("the same, Redis back", back + use(namespace, OUTAGE_S))
        figures = namespace.figures()
    store.close()
    console.print(table)
    console.print(
        f"replayed in {seconds:.1f} s ({records / seconds:,.0f} records/s), {cpu_s:.1f} s of them "
        f"on a CPU; Redis was in use again {back_s:.1f} s after it was back"
    )
    console.print(figures)


if __name__ == "__main__":
    main()
