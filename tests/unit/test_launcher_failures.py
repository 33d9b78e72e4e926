"""`draftloop up`: how a start that fails is reported."""

from __future__ import annotations

import codecs
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from draftloop.errors import StartupFailure
from draftloop.metrics_server import serving_metrics
from orchestrator.ports import port_problems
from orchestrator.role_process import RoleProcess
from orchestrator.stack_config import StackConfig


def test_rule_of_all_settings_shows_none_of_them(tmp_path: Path) -> None:
    """The value of such a rule is all settings; a password was printed."""
    file = tmp_path / "up.toml"
    text = 'draft = "none"\nsmaller_models = "a"\nphrases_url = "redis://:secret@host"\n'
    file.write_bytes(codecs.BOM_UTF8 + text.encode())  # as Windows' editors write it
    with pytest.raises(StartupFailure, match="smaller_models: a without") as caught:
        StackConfig.read(file)
    assert "secret" not in str(caught.value) and "phrases_url" not in str(caught.value)


@pytest.mark.parametrize("host", ["127..0.0.1", "a" * 64])
def test_impossible_host_is_reported(host: str) -> None:
    (problem,) = port_problems(host, {"port": 50051}, set())
    assert problem.startswith(f"port: {host}:50051 cannot be listened on: ")
    with pytest.raises(StartupFailure, match="metrics_listen"), serving_metrics(f"{host}:0"):
        pass


def test_role_that_ends_during_the_start_is_reported_at_once(tmp_path: Path) -> None:
    """It used to be noticed after the other roles had loaded, or not at all."""

    class Script(RoleProcess):
        def __init__(self, role: str, command: str) -> None:
            super().__init__(role, [], tmp_path)
            self.command = command

        def _spawn(self, flags: list[str]) -> Any:
            with self.log_file.open("ab") as log:
                return subprocess.Popen(["sh", "-c", self.command], stdout=log, stderr=log)

    waiting, dead = Script("verifier", "sleep 60"), Script("drafter", "echo no model; exit 1")
    for process in (waiting, dead):
        process.start()
    try:
        with pytest.raises(StartupFailure, match="drafter did not start: no model"):
            waiting.wait_until_ready(time.monotonic() + 30, beside=[waiting, dead])
        dead.address = "127.0.0.1:1"
        with pytest.raises(StartupFailure, match="drafter ended: no model"):
            dead.require_running()
    finally:
        waiting.kill()
        assert waiting.process is not None
        waiting.process.wait()
