"""Generates the tables of docs/results.md and the README's speeds from benchmark records.

`python -m tests.contract.results_pages` rewrites them; a test checks that they are fresh.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.prompts import MAIN_WORKLOADS
from benchmarks.speeds import Speeds
from benchmarks.summaries import (
    GREEDY,
    OF_ONE_REQUEST,
    SAMPLED,
    TOGETHER,
    Column,
    against_best,
    by_requests,
    by_server,
    by_workload,
    cost_of_rows,
    foresight_table,
    mean,
    overheads,
    part_by_part,
    provenance,
    sampled_and_greedy,
    speed_table,
)
from benchmarks.table import sampling
from tests.contract.repository import ROOT
from tests.contract.written_page import WrittenPage

FOLDER = "../benchmarks/results"
# Records: of all methods; at temperature 0.7; with the larger draft model.
MAIN, COLDER, LARGER = "amx", "amx-t07", "amx-large"
CODE = ("completion", "editing", "agent")  # workloads without instructions
# The methods that the README compares; the page of results has the others.
FIRST = (
    "speculative", "prompt_lookup", "ouroboros cold", "ouroboros warm", "opt_tree", "cascade",
    "fused cold", "fused warm",
)  # fmt: skip
IN_A_ROW = ("speculative", "ouroboros warm", "opt_tree", "cascade", "fused warm")
MACHINES = {
    "AMX": "simulated-amx",
    "Zen 5": "simulated-zen5",
    "Zen 4": "simulated-zen4",
    "AVX2": "simulated-avx2",
}
PARTS = (("editing", SAMPLED), ("completion", SAMPLED))

Paragraphs = Callable[[], list[str]]


def matrix(record: str, profile: str) -> Paragraphs:
    """All methods in all cells of a profile."""
    return lambda: [sampled_and_greedy(record, profile), provenance(record, FOLDER, profile)]


def beside_servers(record: str, rate: str = OF_ONE_REQUEST) -> Paragraphs:
    """Draftloop and other servers on the same models."""
    return lambda: [by_server(record, rate), provenance(record, FOLDER)]


def readme_cpu() -> list[str]:
    """The README's methods at 300M."""
    speeds = Speeds.measured(MAIN, "300M")
    means = [mean("mean", speeds, [SAMPLED]), mean("greedy: mean", speeds, [GREEDY])]
    columns = [*by_workload(speeds, SAMPLED), *means]
    return [speed_table(columns, FIRST)]


def gpu(*notes: str) -> Paragraphs:
    """Speeds on an H100."""
    columns = by_workload(Speeds.measured("cuda", "13B"), SAMPLED, CODE)
    return lambda: [speed_table(columns), *notes]


def low_temperature() -> list[str]:
    """Speeds at temperature 0.7."""
    columns = by_workload(Speeds.measured(COLDER, "300M"), 0.7, CODE)
    return [speed_table(columns), provenance(COLDER, FOLDER)]


def larger_draft_model() -> list[str]:
    """The small and the larger draft model side by side, on the prompts that both were given."""
    small = Speeds.measured(MAIN, "300M", prompts_of=LARGER)
    large = Speeds.measured(LARGER, "300M-large", prompts_of=MAIN)
    columns = [
        column
        for workload in MAIN_WORKLOADS
        for column in (
            *by_workload(small, SAMPLED, [workload]),
            Column("larger", large, ((workload, SAMPLED),)),
        )
    ]
    return [speed_table(columns, IN_A_ROW), provenance(LARGER, FOLDER)]


def expensive_drafts() -> list[str]:
    """Speeds with draft forward passes at their measured cost, and at a higher one."""
    cheap, expensive = (
        Speeds.in_virtual_time(f"simulated-{name}", "300M") for name in ("t07", "tenth")
    )
    columns = [
        *by_workload(cheap, 0.7, CODE),
        *by_workload(expensive, 0.7, CODE, prefix="a tenth: "),
        *by_workload(expensive, GREEDY, CODE, prefix="greedy: "),
    ]
    return [speed_table(columns), "`simulated-t07.json`, `simulated-tenth.json`."]


def two_draft_models() -> list[str]:
    """Two draft models in a cascade, an expensive one and a cheap one."""
    speeds = Speeds.in_virtual_time("simulated-row", "300M-large")
    columns = [*by_workload(speeds, SAMPLED), mean("mean", speeds, [SAMPLED])]
    return [speed_table(columns), "`simulated-row.json`."]


def machine_costs() -> list[str]:
    """The current models at the costs of several machines, and the cost that differs."""
    rows = ", ".join(
        f"{cost_of_rows(record, '300M', rows=16):.2f} ({machine})"
        for machine, record in MACHINES.items()
    )
    columns = [
        mean(f"{machine}{', greedy' if temperature == GREEDY else ''}", speeds, [temperature])
        for temperature in (SAMPLED, GREEDY)
        for machine, record in MACHINES.items()
        for speeds in [Speeds.in_virtual_time(record, "300M")]
    ]
    sentence = (
        f"Sixteen tokens in a forward cost so many times one in the records used here: {rows}."
    )
    return [sentence, speed_table(columns, IN_A_ROW)]


def structured_outputs() -> list[str]:
    """Speeds with a JSON schema."""
    columns = [
        Column(f"{profile}, {sampling(temperature)}", speeds, (("json", temperature),))
        for profile in ("300M", "bundled")
        for speeds in [Speeds.measured("json", profile)]
        for temperature in (SAMPLED, GREEDY)
    ]
    return [speed_table(columns), provenance("json", FOLDER)]


RESULTS = WrittenPage(
    ROOT / "docs" / "results.md",
    {
        "speed at 300M": matrix(MAIN, "300M"),
        "speed at 1B": matrix("amx-1B", "1B"),
        "speed of the bundled pair": matrix(MAIN, "bundled"),
        "speed on a GPU": gpu(provenance("cuda", FOLDER)),
        "beside the best at 300M": lambda: [against_best(MAIN, "300M")],
        "beside the best of the bundled pair": lambda: [against_best(MAIN, "bundled")],
        "beside the best at 1B": lambda: [against_best("amx-1B", "1B")],
        "beside llama.cpp": beside_servers("servers-16bit"),
        "beside llama.cpp, quantized": beside_servers("servers-quantized"),
        "beside llama.cpp, four at a time": beside_servers("servers-four", TOGETHER),
        "beside vLLM": beside_servers("servers-float32"),
        "overheads": lambda: [overheads(MAIN, ["300M", "bundled"])],
        "temperature 0.7": low_temperature,
        "larger draft model": larger_draft_model,
        "price of draft forwards": expensive_drafts,
        "draft models in a row": two_draft_models,
        "processors": machine_costs,
        "many requests": lambda: [by_requests("load"), provenance("load", FOLDER)],
        "parts of ouroboros": lambda: [
            part_by_part("ablation-ouroboros", "300M", PARTS),
            provenance("ablation-ouroboros", FOLDER),
        ],
        "sources of fused": lambda: [
            part_by_part("ablation-fused", "300M", PARTS),
            provenance("ablation-fused", FOLDER),
        ],
        "structured output": structured_outputs,
        "foresight at 300M": lambda: [
            foresight_table("oracle", "simulated-forwards", "300M"),
        ],
        "foresight of the bundled pair": lambda: [
            foresight_table("oracle", "simulated-forwards", "bundled")
        ],
    },
)
README = WrittenPage(ROOT / "README.md", {"speed": readme_cpu, "speed on a GPU": gpu()})
PAGES = (RESULTS, README)

if __name__ == "__main__":
    for page in PAGES:
        page.write()
