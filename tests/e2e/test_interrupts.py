"""Ctrl-C while a role starts prints at most one line and never a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from draftloop.interruption import INTERRUPTED
from orchestrator.role_process import MODULES

COMMAND = ("orchestrator.cli", "serve")
# A library that is loaded once a role has come so far: it parses its settings, or does its own
# work.
EARLY, TORCH, GRPC = "pydantic_core", "libtorch_cpu", "cygrpc"


def has_loaded(process: subprocess.Popen[str], library: str) -> bool:
    try:
        mapped = psutil.Process(process.pid).memory_maps()
    except psutil.ZombieProcess:  # it has ended, as the caller will find
        return False
    return any(library in each.path for each in mapped)


def start_process(*command: str, log: Path) -> subprocess.Popen[str]:
    """Starts a role that SIGINT interrupts.

    In a shell's background SIGINT is ignored, and child processes inherit that. The signal is set
    here instead of in a `preexec_fn`, which would fork this process with its gRPC threads.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with log.open("w") as output:
            return subprocess.Popen(
                [sys.executable, "-m", *command], stdout=output, stderr=output, text=True
            )
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("command", "library", "program"),
    [
        ((*COMMAND, "verifier"), EARLY, "draftloop"),
        ((MODULES["verifier"],), EARLY, "verifier"),
        ((MODULES["verifier"],), TORCH, "verifier"),
        ((MODULES["drafter"],), EARLY, "drafter"),
        ((MODULES["drafter"],), TORCH, "drafter"),
        ((MODULES["orchestrator"],), EARLY, "orchestrator"),
        ((MODULES["orchestrator"],), GRPC, "orchestrator"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1],
)
def test_interrupt_while_a_role_imports(
    command: tuple[str, ...], library: str, program: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    process = start_process(*command, "--listen", "127.0.0.1:0", log=log)
    while not has_loaded(process, library):
        assert process.poll() is None, log.read_text()
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == INTERRUPTED, log.read_text()
    messages = [line for line in log.read_text().splitlines() if not line.startswith("{")]
    assert messages == [f"{program}: interrupted"]


@pytest.mark.parametrize("role", ["verifier", "drafter"])
@pytest.mark.parametrize("sign", ['"listening"', '"loading"'])
def test_interrupt_stops_a_listening_role_in_order(role: str, sign: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start_process(MODULES[role], "--listen", "127.0.0.1:0", log=log)
    while sign not in log.read_text():
        assert process.poll() is None, log.read_text()
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0, log.read_text()
    output = log.read_text()
    assert '"stopped"' in output and '"error"' not in output
    assert [line for line in output.splitlines() if not line.startswith("{")] == []
