"""Figures in the documents' sentences agree with the records; no command generates them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, harmonic_mean
from typing import Any

from benchmarks.prompts import MAIN_WORKLOADS
from benchmarks.speeds import read_record
from benchmarks.summaries import server_rates
from tests.contract.repository import ROOT, prose
from tests.contract.results_pages import COLDER, LARGER, MAIN

DOCS = ROOT / "docs"
NUMBERS = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13,
}  # fmt: skip
DRAFTING = ("speculative", "ouroboros warm", "opt_tree", "cascade", "fused warm")


def match_groups(page: Path, pattern: str) -> list[str]:
    """The groups of the only match of the pattern on the page."""
    text = " ".join(prose(page).split())
    (match,) = re.finditer(pattern, text)
    return list(match.groups())


def rows(record: str, profile: str, temperature: float) -> Iterator[dict[str, Any]]:
    """The rows of a record with this profile and temperature."""
    for row in read_record(record)["rows"]:
        if (row["profile"], row["temperature"]) == (profile, temperature):
            yield row


def test_tokens_per_round_where_the_output_repeats_its_input() -> None:
    page = ROOT / "README.md"
    words = match_groups(
        page,
        r"`fused` ([\d.]+) tokens a round over all runs together, in greedy decoding ([\d.]+)\.",
    )
    # Every run has the same number of tokens: rounds are added up, not averaged.
    measured = [
        harmonic_mean(run["tokens_per_round"] for run in runs("editing", temperature, "fused warm"))
        for temperature in (0.8, 0.0)
    ]
    assert [float(word) for word in words] == [round(tokens, 1) for tokens in measured]


def runs(workload: str, temperature: float, method: str) -> list[dict[str, Any]]:
    """The main record's runs at 300M."""
    wanted = ("300M", workload, temperature, method)
    keys = ("profile", "workload", "temperature", "method")
    samples = read_record(MAIN)["samples"]
    return [sample for sample in samples if tuple(sample[key] for key in keys) == wanted]


def test_speeds_with_the_prompts_time() -> None:
    def mean_seconds(workload: str, method: str) -> float:
        return fmean(
            run["first_token_ms"] / 1000 + (run["tokens"] - 1) / run["tokens_per_second"]
            for run in runs(workload, 0.8, method)
        )

    measured = [
        f"{mean_seconds(workload, 'autoregressive') / mean_seconds(workload, 'fused warm'):.2f}"
        for workload in MAIN_WORKLOADS
    ]
    told = r"`fused` makes ([\d.]+)x, ([\d.]+)x, ([\d.]+)x and ([\d.]+)x in "
    assert match_groups(ROOT / "README.md", told + "these four workloads") == measured
    assert match_groups(DOCS / "results.md", told + "the first table") == measured


def test_forward_times_of_the_larger_draft_model() -> None:
    numbers = match_groups(
        DOCS / "results.md", r"take (\S+) to (\S+) ms a round instead of (\S+) to ([\d.]+),"
    )
    measured = []
    for record, profile in ((LARGER, "300M-large"), (MAIN, "300M")):
        drafts = [
            row["round_ms"]["draft_forward"]
            for row in rows(record, profile, 0.8)
            if row["method"] in DRAFTING
        ]
        measured += [round(min(drafts), 1), round(max(drafts), 1)]
    assert [float(word) for word in numbers] == measured


def test_slowdown_of_ouroboros_in_the_services() -> None:
    (percent,) = match_groups(
        DOCS / "strategies.md", r"virtual time and (\d+) % in the services \(AMX"
    )
    lost = []
    for record, temperature in ((MAIN, 0.8), (COLDER, 0.7)):
        speeds = {
            (row["workload"], row["method"]): row["together"]
            for row in rows(record, "300M", temperature)
        }
        lost += [
            100 * (1 - speed / speeds[workload, "speculative"])
            for (workload, method), speed in speeds.items()
            if method.startswith("ouroboros") and workload != "editing"
        ]
    assert int(percent) == round(max(lost))


def test_forward_times_in_the_larger_draft_models_card() -> None:
    words = match_groups(
        ROOT / "models" / "cards" / "drafter-large.md", r"it takes (\w+) to (\w+) times"
    )
    ratios = []
    for larger, smaller in ((LARGER, MAIN), ("zen5-large", "zen5"), ("zen4-large", "zen4")):
        of_larger, of_smaller = (
            read_record(record)["profiles"][profile]["drafter"]["forward_ms_by_tokens"]
            for record, profile in ((larger, "300M-large"), (smaller, "300M"))
        )
        ratios += [of_larger[size] / of_smaller[size] for size in of_larger]
    assert [NUMBERS[word] for word in words] == [round(min(ratios)), round(max(ratios))]


def ratios_of_servers(record: str, ours: str, theirs: str) -> list[float]:
    """Least and largest ratio of our speed to that of the fastest server whose name begins so."""
    ratios = [
        rates[ours] / max(rate for name, rate in rates.items() if name.startswith(theirs))
        for rates in server_rates(record).values()
    ]
    return [min(ratios), max(ratios)]


def test_speed_relative_to_llama_cpp() -> None:
    numbers = match_groups(
        ROOT / "README.md",
        r"`fused` is (\S+) to (\S+) times as fast as llama.cpp with its draft model\. "
        r"Plain decoding is (\S+) to (\S+) times as fast",
    )
    measured = [
        ratio
        for ours, theirs in (("fused", "draft model"), ("plain decoding", "plain decoding"))
        for ratio in ratios_of_servers(
            "servers-16bit", f"Draftloop, {ours}", f"llama.cpp, {theirs}"
        )
    ]
    assert [float(word) for word in numbers] == [round(ratio, 1) for ratio in measured]


def test_speed_relative_to_llama_cpp_with_four_bits() -> None:
    numbers = match_groups(
        DOCS / "results.md", r"`fused` is (\S+) to (\S+) times as fast as llama.cpp's Q4_0 with"
    )
    measured = ratios_of_servers(
        "servers-quantized", "Draftloop w4a8, fused", "llama.cpp Q4_0, draft model"
    )
    assert [float(word) for word in numbers] == [round(ratio, 2) for ratio in measured]


def test_fallback_reasons_of_a_healthy_deployment_are_documented() -> None:
    """Reasons that no alert counts are on the page that explains the metric."""
    alerts = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    (reasons,) = re.findall(r'draftloop_fallback_rounds_total\{reason!~"([^"]+)"', alerts)
    page = (DOCS / "operations.md").read_text()
    (row,) = re.findall(r"^\| `draftloop_fallback_rounds_total` \| rounds.*$", page, re.MULTILINE)
    assert all(f"`{reason}`" in row for reason in reasons.split("|"))
