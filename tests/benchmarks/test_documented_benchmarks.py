"""The benchmarks that README and docs name run to their end; only sizes and outputs are others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.repository import ROOT
from tests.support.documented import Command, documented_commands

TIMEOUT_S = 500
# Said behind what the page says: the last word counts. `{}` is a folder of the test's own.
SMALLER = {
    "benchmarks.run": "--minutes 1 --prompts 1 --tokens 6 --profiles bundled "
    "--workloads completion --out {}/result",
    "benchmarks.load": "--minutes 0.1 --sessions 1,2 --tokens 6 --profile bundled --out {}/load",
    "benchmarks.oracle": "--prompts 1 --tokens 6 --out {}/oracle.json",
    "benchmarks.draft_temperature": "--prompts 1 --tokens 6",
    "benchmarks.simulate": "--profiles 300M --workloads completion --prompts 1 --tokens 6",
    "benchmarks.phrase_log": "--records 20000",
    "benchmarks.gateway": "--tokens 6 --repeats 1 --output {}",
    "benchmarks.prefixes": "--profile bundled --repeats 1 --out {}/prefixes",
    "benchmarks.quantization": "--profile bundled --repeats 1 --tokens 6 --out {}/quantization",
}
BENCHMARKS = [
    command for command in documented_commands() if command.words[:2] == (".venv/bin/python", "-m")
]


@pytest.mark.parametrize("command", BENCHMARKS, ids=lambda command: command.text)
def test_it_runs(command: Command, tmp_path: Path) -> None:
    _, _, module, *flags = command.words
    smaller = SMALLER.get(module, "").format(tmp_path).split()
    done = subprocess.run(
        [sys.executable, "-m", module, *flags, *smaller],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout.strip() or list(tmp_path.iterdir())
