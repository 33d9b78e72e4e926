"""The documents' figures, computed from records."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from benchmarks import speeds as speeds_module
from benchmarks.results import row
from benchmarks.speeds import Speeds
from benchmarks.summaries import Column, labelled, mean, speed_table
from tests.unit.test_benchmark_matrix import sample

CHAT, AGENT = ("chat", 0.8), ("agent", 0.8)
SPEEDS = Speeds({("speculative", CHAT): 2.0, ("fused warm", CHAT): 4.0, ("fused warm", AGENT): 1.0})


def recorded_sample(seconds: float, ratio: float, **values: Any) -> dict[str, Any]:
    """A sample as records store it."""
    base = sample("opt_tree", ratio=ratio, **values)
    outcome = dataclasses.replace(base.outcome, decode_s=seconds)
    return dataclasses.replace(base, outcome=outcome).as_json()


def test_slow_runs_weigh_more() -> None:
    """Plain decoding took 4 and 4 seconds, the method 1 and 4."""
    speeds = Speeds.of([recorded_sample(1.0, 4.0), recorded_sample(4.0, 1.0)])
    assert speeds.ratios == {("opt_tree", ("completion", 0.8)): pytest.approx(8 / 5)}


def test_speeds_match_the_rows_of_the_record() -> None:
    runs = [sample("opt_tree", ratio=ratio, file=f"{ratio}.py") for ratio in (1.0, 1.5, 2.75)]
    speeds = Speeds.of(run.as_json() for run in runs)
    assert [*speeds.ratios.values()] == pytest.approx([row(runs).together])


def test_records_are_compared_on_prompts_of_the_same_workload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file that the other record has in another workload only used to count as shared."""
    shared = recorded_sample(1.0, 2.0, file="a.py", workload="completion")
    elsewhere = recorded_sample(1.0, 8.0, file="b.py", workload="completion")
    other = recorded_sample(1.0, 1.0, file="b.py", workload="agent")
    records = {"one": [shared, elsewhere], "two": [shared, other]}
    monkeypatch.setattr(speeds_module, "read_record", lambda name: {"samples": records[name]})
    compared = Speeds.measured("one", shared["profile"], prompts_of="two")
    assert compared.ratios == {("opt_tree", ("completion", 0.8)): pytest.approx(2.0)}


def test_mean_is_none_when_a_cell_is_missing() -> None:
    assert SPEEDS.mean("fused warm", [CHAT, AGENT]) == pytest.approx(2.0)
    assert SPEEDS.mean("speculative", [CHAT, AGENT]) is None


def test_fastest_method_of_a_column_is_bold() -> None:
    columns = [Column("chat", SPEEDS, (CHAT,)), mean("all", SPEEDS, [0.8], ["chat", "agent"])]
    assert speed_table(columns).splitlines() == [
        "| method | chat | all |",
        "|---|---:|---:|",
        "| `speculative` | 2.00x | - |",
        "| `fused`, warm pool | **4.00x** | **2.00x** |",
    ]


@pytest.mark.parametrize(
    ("method", "label"),
    [
        ("opt_tree", "`opt_tree`"),
        ("ouroboros cold", "`ouroboros`, cold pool"),
        ("transformers assisted", "transformers assisted"),
    ],
)
def test_methods_have_the_labels_of_the_pages(method: str, label: str) -> None:
    assert labelled(method) == label
