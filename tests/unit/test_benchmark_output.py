"""Benchmark files: checked before anything is measured, and written however a run ends."""

from __future__ import annotations

import contextlib
import errno
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from rich.console import Console

from benchmarks import gateway, load, oracle, prefixes, quantization, run, simulate, table
from benchmarks.journal import Journal
from benchmarks.machine import describe_machine
from benchmarks.outcome import Outcome, RoundSplit
from benchmarks.output import prepare, run_command, with_suffixes
from benchmarks.results import Results, Sample, row
from benchmarks.services import stack_of
from benchmarks.settings import read_settings
from benchmarks.systems import ABLATIONS, PLAIN, PROFILES
from benchmarks.workload import Case
from draftloop.completion import DeploymentInfo
from draftloop.config import REPOSITORY
from draftloop.errors import StartupFailure
from tests.support.model_info import deployment_info

RUN = ("--profiles", "bundled", "--workloads", "completion", "--strategies", PLAIN)


def outcome() -> Outcome:
    return Outcome(
        token_ids=(1, 2, 3, 4, 5), first_tokens=1, first_token_s=0.1, decode_s=1.0, rounds=4
    )


def sample(seed: int = 1, **figures: Any) -> Sample:
    figures = {"temperature": 0.8, "outcome": outcome(), "ratio": 1.0, **figures}
    return Sample(
        profile="bundled", workload="completion", method=PLAIN, file="file.py", seed=seed,
        equal=True, **figures,
    )  # fmt: skip


def test_result_names_with_dots_keep_distinct_files() -> None:
    names = [
        str(file) for out in ("v1.5", Path("v1.6")) for file in with_suffixes(out, ".json", ".md")
    ]
    assert names == ["v1.5.json", "v1.5.md", "v1.6.json", "v1.6.md"]


def test_prepare_leaves_writable_files_unchanged(tmp_path: Path) -> None:
    existing = tmp_path / "known.json"
    existing.write_text("{}")
    prepare(existing, tmp_path / "new" / "folder" / "x.json")
    assert existing.read_text() == "{}"
    assert not list((tmp_path / "new" / "folder").iterdir())


def test_prepare_names_unwritable_files(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    (tmp_path / "file").touch()
    for file in (tmp_path / "x.json", tmp_path / "file" / "x.json"):
        with pytest.raises(StartupFailure, match=r"out: .*x\.json cannot be written: ."):
            prepare(file)


@pytest.mark.parametrize("benchmark", [load, prefixes, quantization, oracle, simulate, gateway])
def test_unwritable_output_stops_before_measuring(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="cannot be written"):
        run_command(lambda: benchmark.main(["--out", str(tmp_path / "file" / "x")]))
    assert not capsys.readouterr().out


class MeasurementStarted(Exception):
    """Raised where a benchmark has checked its files and would start to measure."""


@pytest.mark.parametrize(
    ("benchmark", "words"),
    [
        *((benchmark, "") for benchmark in (run, load, prefixes, quantization, oracle, gateway)),
        *((run, words) for words in ("--full", *(f"--ablation {name}" for name in ABLATIONS))),
        (run, "--full --ablation fused"),
    ],
)
def test_default_output_does_not_overwrite_tracked_records(
    benchmark: ModuleType, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are tracked by git; ignored files may be overwritten and leave the tree clean."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("a copy without its history")
    written: list[Path] = []

    def begin(*files: Path) -> None:
        written.extend(files)
        raise MeasurementStarted

    monkeypatch.setattr(benchmark, "prepare", begin)
    with pytest.raises(MeasurementStarted):
        benchmark.main(words.split())
    ignored = subprocess.run(
        ["git", "check-ignore", *map(str, written)], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert ignored.stdout.splitlines() == [str(file) for file in written]


@pytest.mark.parametrize(
    "words",
    ["--tokens 1", "--prompts 0", "--temperature -1", "--temperature nan", "--temperature x"],
)
def test_non_positive_sizes_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    option, value = words.split()
    with pytest.raises(SystemExit):
        read_settings([f"{option}={value}"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert option in last and "must be" in last and value in last


def test_device_option_uses_the_names_of_the_services(capsys: pytest.CaptureFixture[str]) -> None:
    assert read_settings([]).device == "cpu"
    assert read_settings(["--device", "cuda:1"]).device == "cuda:1"
    with pytest.raises(SystemExit):
        read_settings(["--device", "gpu"])
    assert "must be cpu, cuda or cuda:N; got 'gpu'" in capsys.readouterr().err


def test_device_option_applies_to_both_models() -> None:
    assert stack_of(PROFILES["300M"], 1).device == "cpu"
    assert stack_of(PROFILES["300M"], 1, device="cuda").device == "cuda"


@pytest.mark.skipif(torch.cuda.is_available(), reason="has one")
def test_missing_gpu_is_reported_before_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert describe_machine()["gpu"] is None
    assert run.main([*RUN, "--device", "cuda", "--out", str(tmp_path / "x")]) == 1
    assert "device: cuda is not available" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("partial_line", ['{"samples": [{"profile": "bun', '{"samples": []}'])
def test_journal_resumes_after_a_truncated_last_line(partial_line: str, tmp_path: Path) -> None:
    file = tmp_path / "x.partial.jsonl"
    Journal.begin(file, {"tokens": 5}).add([sample(1)])
    with file.open("a") as lines:
        lines.write(partial_line)
    Journal.resume(file, {"tokens": 5}).add([sample(2)])
    assert Journal.resume(file, {"tokens": 5}).seeds("bundled", "completion") == {1, 2}


@pytest.mark.parametrize("content", ["", '{"identity": {"tok'])
def test_journal_without_a_header_starts_anew(content: str, tmp_path: Path) -> None:
    file = tmp_path / "x.partial.jsonl"
    file.write_text(content)
    Journal.resume(file, {"tokens": 5}).add([sample(1)])
    assert Journal.resume(file, {"tokens": 5}).samples == [sample(1)]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), ZeroDivisionError()])
def test_tables_are_written_when_a_run_fails(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(bench: run.Bench) -> None:
        bench.journal.add([sample()])
        raise error

    monkeypatch.setattr(run.Bench, "run", fails)
    assert run.main([*RUN, "--out", str(tmp_path / "x")]) == 1
    names = {file.name for file in tmp_path.iterdir()}
    assert {"x.json", "x.md", "x-bundled.svg", "x.partial.jsonl"} <= names


def test_folder_in_place_of_the_journal_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.partial.jsonl").mkdir()
    assert run.main([*RUN, "--out", str(tmp_path / "x")]) == 1
    output = capsys.readouterr().out.replace("\n", "")
    assert "x.partial.jsonl cannot be written" in output


def test_tables_are_reproduced_from_the_result_file(tmp_path: Path) -> None:
    """Rounding a figure twice may change its last digit."""
    split = RoundSplit(draft_forward=1.00496, verify_forward=5.0, wire=0.5, rest=0.2, overhead=0.7)
    results = Results(
        settings={},
        machine=describe_machine(),
        profiles={},
        rows=[
            row([sample(ratio=1.23496)]),  # 1.235 in the file
            row([sample(temperature=0.0, outcome=replace(outcome(), split=split))]),
        ],
        samples=[],
        left_out=["chat: not at hand"],
    )
    run.write(results, str(tmp_path / "x"), Console(quiet=True))
    read = Results.read(tmp_path / "x.json")
    assert (tmp_path / "x.md").read_text() == table.markdown(read.rows, read.left_out)
    assert table.markdown(read.rows) != table.markdown(results.rows), "they would have shown it"


class InterruptedServices:
    """Services whose caller interrupts in the third turn of both strategies."""

    def __init__(self) -> None:
        self.calls = 0

    def info(self) -> DeploymentInfo:
        return deployment_info()

    def run_together(self, strategy: str, cases: Sequence[Case], sessions: int) -> list[Outcome]:
        self.calls += 1
        if self.calls == 2 + 2 * 2 + 1 + 1:  # warm-up, two turns, one run of the third, this
            raise KeyboardInterrupt
        return [outcome()] * len(cases)


def test_interrupted_load_test_keeps_measured_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def running(*_: Any) -> Iterator[InterruptedServices]:
        yield InterruptedServices()

    monkeypatch.setattr(load, "running", running)
    words = ("--strategies", "speculative", "--sessions", "1,2", "--profile", "bundled")
    assert load.main([*words, "--out", str(tmp_path / "v1.5")]) == 130
    rows = json.loads((tmp_path / "v1.5.json").read_text())["rows"]
    assert [(row["sessions"], row["strategy"], row["runs"]) for row in rows] == [
        (1, PLAIN, 2),
        (1, "speculative", 2),
    ]
    assert (tmp_path / "v1.5.md").exists() and (tmp_path / "v1.5.svg").exists()
