"""The benchmark matrix: time budget, interrupted runs, rows and tables."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import calibration_plot, plot, table
from benchmarks.calibration import Estimates, estimates
from benchmarks.journal import Journal
from benchmarks.measure import Plan, measure
from benchmarks.outcome import Outcome, RoundSplit
from benchmarks.prompts import Material, Prompt
from benchmarks.results import Results, Sample, row, rows
from benchmarks.run import empty_cells, methods_for
from benchmarks.settings import FULL, SHORT, read_settings
from benchmarks.systems import (
    COMPARED,
    MAIN,
    METHODS,
    PLAIN,
    PROFILES,
    SOURCES,
    by_part,
    unserved,
)
from benchmarks.workload import Case, Workload
from draftloop.completion import SourceFigures
from draftloop.errors import StartupFailure
from draftloop.speculation import FUSED, OUROBOROS, STRATEGIES
from draftloop.tree import TokenSource

PROMPT = Prompt("file.py", "import os", (1, 2, 3))
OTHER = Prompt("other.py", "import re", (1, 2, 4))
SPLIT = RoundSplit(draft_forward=1.0, verify_forward=5.0, wire=0.5, rest=0.25, overhead=0.75)


def figures(
    source: TokenSource = TokenSource.PHRASE, drafted: int = 4, expected: float = 3.0
) -> SourceFigures:
    return SourceFigures(
        source=source, proposed=9, drafted=drafted, accepted=drafted // 2, expected=expected
    )


def sample(method: str = PLAIN, **values: Any) -> Sample:
    outcome = Outcome(
        token_ids=(1, 2, 3, 4, 5),
        first_tokens=1,
        first_token_s=0.1,
        decode_s=2.0,
        rounds=2,
        drafted=4,
        accepted=2,
        draft_forwards=6,
        fallback_rounds=1,
        split=SPLIT,
        sources=values.pop("sources", (figures(),)),
        ends={"nodes": 2},
    )
    plain: dict[str, Any] = {"profile": "bundled", "workload": "completion", "temperature": 0.8}
    chosen = {**plain, "file": "file.py", "seed": 1, "ratio": 1.0, "equal": True, **values}
    return Sample(method=method, outcome=outcome, **chosen)


def workload(name: str = "completion", prompts: int = 1, passes: int = 1) -> Workload:
    material = Material(measured=[PROMPT, OTHER][:prompts], warming=[])
    return Workload(name=name, material=material, tokens=5, temperatures=(0.8, 0.0), passes=passes)


class Scripted:
    """A system that answers at once and records each prompt's workload."""

    def __init__(self) -> None:
        self.workloads: list[str] = []

    def run(self, method: str, case: Case) -> Outcome:
        self.workloads.append(case.workload)
        return sample().outcome


def workloads_run(plans: list[Plan], share_s: float, last_call_s: float) -> list[str]:
    system, start = Scripted(), time.monotonic()
    repetitions = measure(
        PROFILES["bundled"],
        {"draftloop": system},
        plans,
        deadline=start + share_s,
        last_call=start + last_call_s,
        tick=lambda _: None,
    )
    list(repetitions)
    return system.workloads


def test_every_cell_runs_before_any_is_repeated() -> None:
    """A run that ends early must have few runs in every cell, not many in the first cells."""
    plans = [Plan(workload(name, prompts=2), [PLAIN]) for name in ("completion", "editing")]
    both = ["completion", "completion", "editing", "editing"]
    assert workloads_run(plans, 60, 60) == [*both, "completion", "editing"]


def test_nothing_starts_after_the_deadline() -> None:
    assert workloads_run([Plan(workload(), [PLAIN])], -2, -1) == []


def test_one_repetition_runs_when_startup_used_up_the_share() -> None:
    assert workloads_run([Plan(workload(passes=9), [PLAIN])], -1, 60) == ["completion"] * 2


def test_repetition_fits_by_the_time_of_previous_ones() -> None:
    plan = Plan(workload(prompts=2), [PLAIN])
    assert plan.fits(now=2, deadline=1, last_call=3)
    assert not plan.fits(now=3, deadline=1, last_call=3)
    plan.cases_run, plan.seconds = 2, 10.0
    assert plan.fits(now=0, deadline=10, last_call=0)
    assert not plan.fits(now=1, deadline=10, last_call=99)


def test_measured_repetitions_are_not_repeated() -> None:
    full = Plan(workload(prompts=2), [PLAIN])
    first = full.waiting[0][1][0].seed
    rest = Plan(workload(prompts=2), [PLAIN], frozenset({first}))
    assert rest.waiting == full.waiting[1:]


def test_interrupted_run_is_resumed_from_its_journal(tmp_path: Path) -> None:
    file = tmp_path / "new" / "x.partial.jsonl"
    journal = Journal.begin(file, {"tokens": 5, "names": ("a",)})
    journal.add_profile("bundled", {"title": "pair"})
    journal.add([sample(), sample("speculative", seed=2, equal=None)])
    resumed = Journal.resume(file, {"tokens": 5, "names": ("a",)})
    assert (resumed.samples, resumed.profiles) == (journal.samples, journal.profiles)
    assert resumed.seeds("bundled", "completion") == {1, 2}
    assert not resumed.seeds("300M", "completion")


def test_journal_of_other_settings_is_not_resumed(tmp_path: Path) -> None:
    file = tmp_path / "x.partial.jsonl"
    assert not Journal.resume(file, {"tokens": 5}).samples, "nothing to resume is a beginning"
    with pytest.raises(StartupFailure, match="another tokens"):
        Journal.resume(file, {"tokens": 6})


def test_empty_cells_are_listed() -> None:
    settings = read_settings(["--workloads", "chat", "--profiles", "1B", "--full"])
    empty = empty_cells(settings, {("1B", "chat", 0.8)})
    assert empty == [f"{PROFILES['1B'].title}, chat, greedy: n = 0"]


def test_presets_set_the_defaults() -> None:
    short, full = read_settings([]), read_settings(["--full", "--minutes", "9"])
    assert short.minutes == SHORT["minutes"] < 5
    assert (full.minutes, full.temperature) == (9, [0.8, 0.0])
    assert full.strategies == COMPARED and full.workloads == FULL["workloads"]
    assert set(short.strategies) == set(MAIN)


def test_compared_methods_cover_every_strategy() -> None:
    assert {METHODS[name].speculation.strategy for name in COMPARED} == set(STRATEGIES)


@pytest.mark.parametrize("strategy", [OUROBOROS, FUSED])
def test_ablation_runs_its_strategy_and_plain_decoding(strategy: str) -> None:
    settings = read_settings(["--ablation", strategy])
    assert settings.strategies == by_part(strategy)
    assert {METHODS[name].speculation.strategy for name in by_part(strategy)} == {PLAIN, strategy}


def test_fused_ablation_switches_single_sources() -> None:
    switched = {name: METHODS[name].speculation.fused for name in by_part(FUSED)}
    without, only = switched["fused: without phrases"], switched["fused: only phrases"]
    assert [getattr(without, source) for source in SOURCES].count(False) == 1
    assert [getattr(only, source) for source in SOURCES].count(True) == 1
    assert not without.phrases and only.phrases
    assert all(METHODS[name].pool == "warm" for name in by_part(FUSED)[1:])


def test_transformers_is_compared_on_completion_only() -> None:
    assert methods_for("completion", COMPARED) == COMPARED
    assert not [name for name in methods_for("chat", COMPARED) if "transformers" in name]


def test_strategies_the_drafter_lacks_are_left_out() -> None:
    """The orchestrator would draft from phrases instead, under the wrong name."""
    methods = [PLAIN, "speculative", "token_recycling", "fused warm"]
    assert set(unserved(methods, ["speculative"])) == {"fused warm"}


def test_row_reports_spread_and_forwards() -> None:
    summed = row([sample(ratio=1.0), sample(ratio=3.0), sample(ratio=1.5)])
    assert (summed.least_ratio, summed.ratio, summed.most_ratio) == (1.0, 1.5, 3.0)
    assert summed.draft_forwards == 1.5, "18 forwards for 12 tokens after the first ones"
    assert summed.fallback == 0.5


def test_overall_ratio_is_weighted_by_run_time() -> None:
    """12 tokens at 10 a second against 4, and at 40 against 8: 4.5 s of plain decoding in 1.5 s."""
    slow, quick = sample(ratio=2.5), sample(ratio=5.0)
    slow = replace(slow, outcome=replace(slow.outcome, decode_s=1.2))
    quick = replace(quick, outcome=replace(quick.outcome, decode_s=0.3), file="another.py")
    summed, repeated = row([slow, quick]), row([slow, quick] * 50)
    assert summed.together == pytest.approx(4.5 / 1.5)
    for few in (summed, repeated):  # the same prompts again tell nothing about others
        assert (few.least_together, few.most_together) == pytest.approx((2.5, 5.0))
    many = row([replace(each, file=f"{n}") for n, each in enumerate([slow, quick] * 50)])
    assert 2.5 < (many.least_together or 0) < 3 < (many.most_together or 0) < 3.5


def test_matrix_shows_runs_and_gaps() -> None:
    """A method that a workload lacks must show as a gap, not shift the line."""
    matrix_rows = rows(
        [sample(), sample("speculative", ratio=1.25), sample(workload="chat", temperature=0.0)]
    )
    (title, names, lines), (together, same_names, ratios) = table.matrices(matrix_rows)
    assert "the bundled pair" in title and together == f"{title}, all runs together"
    assert names == same_names == ["method", "completion, T = 0.8", "chat, greedy"]
    assert lines[1] == ["speculative", "1.25x (n = 1)", table.NONE]
    assert ratios[1] == ["speculative", "1.25x (1.25, 1.25)", table.NONE]
    text = table.markdown(matrix_rows, ["1B, chat: n = 0"])
    assert "- 1B, chat: n = 0" in text and "| speculative | 1.25x (n = 1) | - |" in text


def test_estimates_are_summed_by_cell_and_source() -> None:
    none = figures(TokenSource.DRAFT_MODEL, drafted=0, expected=0)
    entries = estimates([sample(sources=(figures(), none)), sample(), sample("speculative")])
    assert [(e.method, e.source) for e in entries] == [(PLAIN, "phrase"), ("speculative", "phrase")]
    first = entries[0]
    assert (first.proposed, first.drafted, first.accepted, first.expected) == (18, 8, 4, 6.0)
    assert (first.estimated_share, first.real_share) == (0.75, 0.5)


def test_results_file_keeps_estimates_and_gaps(tmp_path: Path) -> None:
    samples = [sample()]
    results = Results(
        settings={},
        machine={},
        profiles={},
        rows=rows(samples),
        samples=[entry.as_json() for entry in samples],
        calibration=estimates(samples),
        left_out=["chat: n = 0"],
    )
    results.write(tmp_path / "x.json")
    assert Results.read(tmp_path / "x.json") == results
    assert results.samples[0]["sources"] == {"phrase": [9, 4, 2, 3.0]}


def test_plots_are_deterministic(tmp_path: Path) -> None:
    plotted = rows([sample(), sample("speculative", ratio=1.5), sample(temperature=0.0)])
    points: list[Estimates] = estimates([sample(), sample("speculative")])
    pictures = []
    for name in ("a", "b"):
        plot.draw(plotted, tmp_path / f"{name}.svg")
        calibration_plot.draw(points, tmp_path / f"{name}-c.svg")
        pictures.append([(tmp_path / f"{name}{end}.svg").read_bytes() for end in ("", "-c")])
    assert pictures[0] == pictures[1]
    assert all(picture.startswith(b"<?xml") for picture in pictures[0])
