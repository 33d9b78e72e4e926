"""Tables of records for the documents, with where they were measured.

`make docs` writes them into the pages; a test checks that the pages are up to date.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.against_best import comparisons
from benchmarks.prompts import MAIN_WORKLOADS
from benchmarks.speeds import Cell, Speeds, read_record
from benchmarks.systems import METHODS, PLAIN, PROFILES
from benchmarks.table import NONE, sampling, untitled_table

WORKLOADS = tuple(MAIN_WORKLOADS)
SAMPLED, GREEDY = 0.8, 0.0
FUSED_WARM = "fused warm"
# Rates in rows of `benchmarks.servers`: after a request's first token, or with all prompts.
OF_ONE_REQUEST, TOGETHER = "tokens_per_second", "together"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table of speeds: the geometric mean over `cells`."""

    title: str
    speeds: Speeds
    cells: tuple[Cell, ...]


def by_workload(
    speeds: Speeds, temperature: float, workloads: Sequence[str] = WORKLOADS, prefix: str = ""
) -> list[Column]:
    """One column per workload."""
    return [Column(f"{prefix}{name}", speeds, ((name, temperature),)) for name in workloads]


def mean(
    title: str, speeds: Speeds, temperatures: Iterable[float], workloads: Sequence[str] = WORKLOADS
) -> Column:
    """One column for the mean over all workloads at these temperatures."""
    return Column(title, speeds, tuple((name, t) for t in temperatures for name in workloads))


def sampled_and_greedy(record: str, profile: str) -> str:
    """Table of the speed of every method in all cells of a profile."""
    speeds = Speeds.measured(record, profile)
    return speed_table(
        [
            *by_workload(speeds, SAMPLED),
            *by_workload(speeds, GREEDY, prefix="greedy: "),
            mean("mean", speeds, (SAMPLED, GREEDY)),
        ]
    )


def speed_table(columns: Sequence[Column], methods: Sequence[str] = ()) -> str:
    """Table with one line per method; the fastest of each column is bold."""
    shown = methods or [name for name in columns[0].speeds.methods if name != PLAIN]
    figures = {
        name: [column.speeds.mean(name, column.cells) for column in columns] for name in shown
    }
    best = [
        max((value or 0.0 for value in values), default=0.0)
        for values in zip(*figures.values(), strict=True)
    ]
    lines = [
        [labelled(name), *(_speed(value, top) for value, top in zip(values, best, strict=True))]
        for name, values in figures.items()
    ]
    return untitled_table(["method", *(column.title for column in columns)], lines)


def _speed(value: float | None, best: float) -> str:
    if value is None:
        return NONE
    return f"**{value:.2f}x**" if value == best else f"{value:.2f}x"


def labelled(method: str) -> str:
    """The method's name as the pages write it."""
    if METHODS[method].system != "draftloop":
        return method
    name, _, pool = method.partition(" ")
    return f"`{name}`, {pool} pool" if pool else f"`{method}`"


def against_best(record: str, profile: str) -> str:
    """Table of `fused` with a warm pool and the best single strategy of each cell."""
    lines = [
        [
            f"{found.workload}, {sampling(found.temperature)}",
            f"`{found.best}`",
            f"{found.ratio:.2f}",
            f"{found.least:.2f} to {found.most:.2f}",
            f"{found.apart:.2f}",
            str(found.runs),
        ]
        for found in comparisons(read_record(record)["samples"])
        if (found.profile, found.method) == (profile, FUSED_WARM)
    ]
    names = ["cell", "best single strategy", "`fused`, warm pool", "within", "apart", "n"]
    return untitled_table(names, lines)


def cost_of_rows(record: str, profile: str, rows: int) -> float:
    """Time of a target forward with `rows` rows, relative to one row.

    The costs are those with which a record in virtual time was simulated.
    """
    (measured,) = read_record(record)["settings"]["costs"]
    verifier = read_record(Path(measured).stem)["profiles"][profile]["verifier"]
    took: Mapping[str, float] = verifier["forward_ms_by_tokens"]
    return took[str(rows)] / took["1"]


def overheads(record: str, profiles: Sequence[str], temperature: float = SAMPLED) -> str:
    """Table of a round's cost outside of forwards: least and greatest of the workloads' medians."""
    found: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in read_record(record)["rows"]:
        if row["round_ms"] and row["temperature"] == temperature:
            found[row["method"]][row["profile"]].append(row["round_ms"]["overhead"])
    lines = [
        [labelled(method), *(_span(costs[profile], ".1f") for profile in profiles)]
        for method, costs in found.items()
    ]
    return untitled_table(["method", *(PROFILES[name].title for name in profiles)], lines)


def by_requests(record: str) -> str:
    """Table of the throughput of concurrent clients, from a record of `benchmarks.load`."""
    rows = {(row["strategy"], row["sessions"]): row for row in read_record(record)["rows"]}
    strategies, sessions = (list(dict.fromkeys(keys)) for keys in zip(*rows, strict=True))
    lines = [
        [labelled(name), *(_throughput(rows.get((name, number))) for number in sessions)]
        for name in strategies
    ]
    return untitled_table(["at a time", *map(str, sessions)], lines)


def _throughput(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return NONE
    tokens = f"{row['tokens_per_second']:.0f}"
    return tokens if row["strategy"] == PLAIN else f"{tokens} ({row['ratio']:.2f}x)"


def part_by_part(record: str, profile: str, cells: Sequence[Cell]) -> str:
    """Table of an ablation: speed, tokens per round, and draft model forwards per token."""
    speeds = Speeds.measured(record, profile)
    rows = {
        (r["method"], (r["workload"], r["temperature"])): r for r in read_record(record)["rows"]
    }

    def figures(method: str, cell: Cell) -> list[str]:
        row = rows[method, cell]
        ratio = f"{speeds.ratios[method, cell]:.2f}x"
        return [ratio, f"{row['tokens_per_round']:.2f}", f"{row['draft_forwards']:.2f}"]

    lines = [
        [method.partition(": ")[2], *(text for cell in cells for text in figures(method, cell))]
        for method in speeds.methods
        if method != PLAIN
    ]
    columns = [
        title
        for workload, temperature in cells
        for title in (f"{workload}, {sampling(temperature)}", "tokens/round", "forwards/token")
    ]
    return untitled_table(["on", *columns], lines)


def foresight_table(oracle: str, simulated: str, profile: str) -> str:
    """Table of `fused`, when only forwards take time, and of perfect knowledge of candidates."""
    bounds: defaultdict[Cell, dict[int, float]] = defaultdict(dict)
    for bound in read_record(oracle)["bounds"]:
        if (bound["profile"], bound["sources"]) == (profile, "all"):
            bounds[bound["workload"], bound["temperature"]][bound["width"]] = bound["ratio"]
    reached = Speeds.in_virtual_time(simulated, profile).ratios
    lines = []
    for cell, known in sorted(bounds.items(), key=lambda entry: -entry[0][1]):
        first, most, own = known[min(known)], known[max(known)], reached[FUSED_WARM, cell]
        figures = [f"{first:.2f}x", f"{own:.2f}x", f"{own / first:.0%}", f"{most:.1f}x"]
        lines.append([f"{cell[0]}, {sampling(cell[1])}", *figures])
    names = [
        "cell",
        "foresight, one candidate",
        "`fused`",
        "its share",
        "foresight, eight candidates",
    ]
    return untitled_table(names, lines)


def by_server(record: str, rate: str = OF_ONE_REQUEST) -> str:
    """Table of tokens per second, from a record of `benchmarks.servers`.

    `rate`: `OF_ONE_REQUEST`, or `TOGETHER`.
    """
    cells = sorted(server_rates(record, rate).items(), key=lambda entry: -entry[0][1])
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for _, rates in cells:
        best = max(rates.values())
        for server, value in rates.items():
            lines[server].append(f"**{value:.1f}**" if value == best else f"{value:.1f}")
    first: defaultdict[str, list[float]] = defaultdict(list)
    for row in read_record(record)["rows"]:
        first[row["server"]].append(row["first_token_ms"] / 1e3)
    titles = [f"{'' if temperature else 'greedy: '}{name}" for (name, temperature), _ in cells]
    return untitled_table(
        ["tokens per second", *titles, "first token, s"],
        [[server, *rates, _span(first[server], ".1f")] for server, rates in lines.items()],
    )


def server_rates(record: str, rate: str = OF_ONE_REQUEST) -> Mapping[Cell, Mapping[str, float]]:
    """Tokens per second by cell and server, in a record of `benchmarks.servers`."""
    rates: defaultdict[Cell, dict[str, float]] = defaultdict(dict)
    for row in read_record(record)["rows"]:
        rates[row["workload"], row["temperature"]][row["server"]] = row[rate]
    return rates


def provenance(record: str, folder: str, profile: str | None = None) -> str:
    """The source of a table's figures: a link to the record, its code version and its runs."""
    content = read_record(record)
    settings = content["settings"]
    counts: defaultdict[float, set[int]] = defaultdict(set)
    for row in content["rows"]:
        if profile in (None, row.get("profile")):
            counts[row.get("temperature", settings["temperature"])].add(row["runs"])
    runs = ", ".join(
        f"{sampling(temperature)}: n = {_span(found, '.0f')}"
        for temperature, found in counts.items()
    )
    return (
        f"[`{record}.md`]({folder}/{record}.md): code of {content['machine']['commit']}, "
        f"{settings['tokens']} tokens; {runs}."
    )


def _span(values: Collection[float], form: str) -> str:
    if not values:
        return NONE
    least, most = (format(pick(values), form) for pick in (min, max))
    return least if least == most else f"{least} to {most}"
