"""When the disk is full, log lines are lost and the services go on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from draftloop.openmp import prefer_passive_waiting
from tests.e2e.client import Case
from tests.faults.fleet import MODEL, MODEL_FLAGS
from tests.faults.load import DOORS
from tests.support.ports import quiet_port
from tests.support.service_process import ServiceProcess

FULL = Path("/dev/full")

prefer_passive_waiting()


class UnloggedServices:
    """An orchestrator and its verifier, neither of which can write its log."""

    def __init__(self, folder: Path) -> None:
        self.verifier = ServiceProcess("verifier", MODEL_FLAGS, folder / "v", FULL)
        self.http_address = f"127.0.0.1:{quiet_port()}"
        flags = ["--verifiers", self.verifier.address, "--drafters", "", "--tokenizer", MODEL]
        flags += ["--http-listen", self.http_address, "--connect-timeout-s", "120"]
        self.orchestrator = ServiceProcess("orchestrator", flags, folder / "o", FULL)
        self.address = self.orchestrator.address


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full is Linux's")
def test_services_run_when_logs_cannot_be_written(
    tmp_path: Path, requests: list[Case], fault_free_outputs: list[list[int]]
) -> None:
    """Both start, answer, survive the verifier's restart, and end with status 0."""
    unlogged = UnloggedServices(tmp_path)
    both = (unlogged.verifier, unlogged.orchestrator)
    try:
        for process in both:
            process.start()
        for process in both:
            process.wait_until_ready()
        for stream in DOORS:
            pieces = stream(unlogged, requests[0], "ouroboros")
            received = list(next(pieces))
            unlogged.verifier.kill()
            unlogged.verifier.start()
            received += [token for piece in pieces for token in piece]
            assert received == fault_free_outputs[0]
            unlogged.verifier.wait_until_ready()
        for process in reversed(both):
            process.send(signal.SIGTERM)
            assert process.wait_for_exit() == 0
    finally:
        for process in both:
            process.kill()
