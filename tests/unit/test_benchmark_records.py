"""Files that are not records are refused by name, without a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.recorded_costs import read_profiles
from benchmarks.results import Results
from benchmarks.settings import RESULTS
from draftloop.errors import InvalidInput

TRUNCATED = '{"settings": {}, "profiles": {"300M": {"verif'


def invalid_record_files(folder: Path) -> list[Path]:
    """A truncated record, a file that is not JSON, and the record of another benchmark."""
    (folder / "torn.json").write_text(TRUNCATED)
    (folder / "notes.txt").write_text("none")
    return [folder / "torn.json", folder / "notes.txt", RESULTS / "load.json"]


def test_invalid_record_is_refused_as_results(tmp_path: Path) -> None:
    for file in invalid_record_files(tmp_path):
        with pytest.raises(InvalidInput, match="results: must be a file that benchmarks.run wrote"):
            Results.read(file)


def test_invalid_record_is_refused_as_costs(tmp_path: Path) -> None:
    for file in invalid_record_files(tmp_path):
        with pytest.raises(InvalidInput, match="costs: must be results that benchmarks.run wrote"):
            read_profiles([str(file)])


@pytest.mark.parametrize(
    ("words", "message"),
    [((), "usage: "), (("nowhere.json",), "No such file"), ((".",), "directory")],
)
def test_table_command_reports_invalid_records_in_one_line(
    words: tuple[str, ...], message: str
) -> None:
    command = [sys.executable, "-m", "benchmarks.table", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode and message in done.stderr and "Traceback" not in done.stderr
