"""The documented benchmarks run to their end; only sizes and output files are replaced."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from benchmarks.systems import PLAIN
from orchestrator.launcher import Stack
from orchestrator.stack_config import StackConfig
from tests.contract.repository import ROOT
from tests.support.documented import Command, documented_commands
from tests.support.forked import ForkedStack

TIMEOUT_S = 500
# Appended to the documented flags: the last value counts. `{}` is the test's folder.
SMALLER = {
    "benchmarks.run": "--minutes 1 --prompts 1 --tokens 6 --profiles bundled "
    "--workloads completion --out {}/result",
    "benchmarks.load": "--minutes 0.1 --sessions 1,2 --tokens 6 --profile bundled --out {}/load",
    "benchmarks.load --server": "--minutes 0.1 --requests 1,2 --tokens 6 --out {}/load "
    "--prompts {}/prompts.txt",
    "benchmarks.oracle": "--prompts 1 --tokens 6 --out {}/oracle.json",
    "benchmarks.draft_temperature": "--prompts 1 --tokens 6",
    "benchmarks.simulate": "--profiles 300M --workloads completion --prompts 1 --tokens 6",
    "benchmarks.phrase_log": "--records 20000",
    "benchmarks.gateway": "--tokens 6 --repeats 1 --out {}/gateway",
    "benchmarks.prefixes": "--profile bundled --repeats 1 --out {}/prefixes",
    "benchmarks.export": "--out {}/pair --inflate 40M",
    "benchmarks.servers --server": "--prompts 1 --tokens 6 --workloads completion --out {}/servers",
    "benchmarks.quantization": "--profile bundled --repeats 1 --tokens 6 --out {}/quantization",
}
BENCHMARKS = [
    command for command in documented_commands() if command.words[:2] == (".venv/bin/python", "-m")
]
# A running server under load, and several side by side.
LOAD_OF_A_SERVER, SERVERS = {"benchmarks.load", "--server"}, {"benchmarks.servers", "--server"}
OWN_PROMPTS = "def add(a, b):\nclass Queue:\nimport os\n"


def parametrized(commands: Iterable[Command]) -> pytest.MarkDecorator:
    """Runs a test once with each of these commands."""
    return pytest.mark.parametrize("command", list(commands), ids=lambda command: command.text)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """A deployment as users have it, with prefix caching and the default strategy."""
    config = StackConfig(
        port=0, http_port=0, drafter_port=0, verifier_port=0, dtype="float32",
        start_timeout_s=240,
    )  # fmt: skip
    with ForkedStack(config) as running:
        yield running


def run(command: Command, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Runs the command at its smallest size, with output files in the folder."""
    _, _, module, *flags = command.words
    kind = f"{module} --server" if "--server" in flags else module
    smaller = SMALLER.get(kind, "").replace("{}", str(folder)).split()
    result = subprocess.run(
        [sys.executable, "-m", module, *flags, *smaller, *more],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr or result.stdout
    assert "Traceback" not in result.stderr, result.stderr
    return result


@parametrized(command for command in BENCHMARKS if "--server" not in command.words)
def test_documented_benchmark_runs(command: Command, tmp_path: Path) -> None:
    assert run(command, tmp_path).stdout.strip() or list(tmp_path.iterdir())


@parametrized(command for command in BENCHMARKS if set(command.words) >= LOAD_OF_A_SERVER)
def test_documented_benchmark_measures_a_running_server(
    command: Command, stack: Stack, tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text(OWN_PROMPTS)
    run(command, tmp_path, "--server", stack.address)
    record = json.loads((tmp_path / "load.json").read_text())
    measured = {(row["sessions"], row["strategy"]) for row in record["rows"]}
    assert measured >= {(number, name) for number in (1, 2) for name in (PLAIN, "fused cold")}
    assert all(row["equal"] == 1 for row in record["rows"])
    assert record["models"]["verifier"]["dtype"] == "float32"


@parametrized(command for command in BENCHMARKS if set(command.words) >= SERVERS)
def test_documented_benchmark_compares_running_servers(
    command: Command, stack: Stack, tmp_path: Path
) -> None:
    """Both names stand for the same server here, so greedy answers are equal."""
    url = f"http://{stack.http_address}"
    words = tuple(re.sub(r"http://[\w.:]+", url, word) for word in command.words)
    run(Command(command.page, words), tmp_path, "--temperature", "0")
    record = json.loads((tmp_path / "servers.json").read_text())
    assert [server["name"] for server in record["servers"]] == ["Draftloop", "llama.cpp"]
    assert [(row["server"], row["runs"], row["equal"]) for row in record["rows"]] == [
        ("Draftloop", 1, 1),
        ("llama.cpp", 1, 1),
    ]
