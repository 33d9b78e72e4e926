"""What the launcher tells the roles."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from drafter_service.config import DrafterSettings
from draftloop.config import bundled_model
from draftloop.errors import StartupFailure
from orchestrator.launcher import Stack
from orchestrator.role_process import PYTHON, RoleProcess
from orchestrator.stack_config import StackConfig


@pytest.mark.parametrize(("draft", "threads"), [("drafter", ["1"]), ("drafter-large", [])])
def test_a_draft_model_that_one_core_holds_gets_one_thread(draft: str, threads: list[str]) -> None:
    stack = Stack(StackConfig(draft=bundled_model(draft), device="cpu"))
    flags = stack._drafter_flags()
    stack.stop()
    asked = [value for name, value in pairwise(flags) if name == "--threads"]
    assert asked == threads


def test_nothing_has_a_word_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "up.toml"
    file.write_text('draft = "none"\nhttp_port = ""\n')
    config = StackConfig.read(file)
    assert config.draft is None and config.http_port is None
    file.write_text("http_port = false\n")
    with pytest.raises(StartupFailure, match="http_port"):
        StackConfig.read(file)
    file.write_bytes(b"draft = '\xff'\n")
    with pytest.raises(StartupFailure, match="config: .*cannot be read"):
        StackConfig.read(file)


def test_ports_are_looked_at_before_models_are_loaded() -> None:
    def refusal(**settings: Any) -> str:
        stack = Stack(StackConfig(**{"port": 0, "http_port": 0, **settings}))
        with pytest.raises(StartupFailure) as caught, stack:
            pass
        return str(caught.value)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "is in use" in refusal(port=port, verifier_port=0, drafter_port=0)
    assert "is that of http_port, too" in refusal(port=20_999, http_port=20_999)
    assert "cannot be listened on" in refusal(host="10.255.255.1", port=20_999)


def test_all_that_is_missing_is_said_at_once_what_was_asked_for_first(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        usual, asked = (server.getsockname()[1] for server in servers)

        class Usual(StackConfig):
            verifier_port: int = usual  # which nobody asked for

        same = {"drafter_port": 20_999, "http_port": 20_999}
        config = Usual(target=tmp_path / "no", port=asked, **same)
        with pytest.raises(StartupFailure) as caught:
            stack.enter_context(Stack(config))
    target, port, http_port, verifier_port = str(caught.value).splitlines()
    assert target.startswith(f"target: {tmp_path / 'no'} holds no config.json")
    assert port.startswith(f"port: 127.0.0.1:{asked} is in use")
    assert http_port.startswith("http_port: 127.0.0.1:20999 is that of drafter_port, too")
    assert verifier_port.startswith(f"verifier_port: 127.0.0.1:{usual} is in use")


@pytest.mark.parametrize("name", ["DRAFTLOOP_DRAFTER_PHRASES_URL", "DRAFTLOOP_PHRASES_URL"])
def test_an_environments_phrase_log_is_not_overruled(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "redis://there")

    class Unstarted(RoleProcess):
        def start(self) -> None:
            pass

    def given(config: StackConfig) -> str:
        stack = Stack(config)
        stack.role_process = Unstarted
        stack._add("drafter", 0, [])
        with pytest.MonkeyPatch.context() as started:
            for variable, value in stack.processes["drafter"].environment.items():
                started.setenv(variable, value)
            return DrafterSettings.from_command_line([]).phrases_url

    assert given(StackConfig()) == "redis://there"
    assert given(StackConfig(phrases_url="redis://here")) == "redis://here"


def test_files_of_the_users_folder_are_no_modules(tmp_path: Path) -> None:
    (tmp_path / "structlog.py").write_text("raise SystemExit('not ours')")
    command = [*PYTHON, "orchestrator", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "--verifiers" in done.stdout, done.stderr


def test_a_role_has_its_own_grace_period(tmp_path: Path) -> None:
    role = RoleProcess("verifier", [], tmp_path)
    assert role._grace_period_s == 10.0
    role.flags = ["--grace-period-s", "60"]
    assert role._grace_period_s == 60.0
    role.flags, role.environment["DRAFTLOOP_VERIFIER_GRACE_PERIOD_S"] = [], "3"
    assert role._grace_period_s == 3.0


def test_a_full_disk_costs_what_is_compiled_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loops.py").write_text(
        "from draftloop.runtime.compiling import compiled\n"
        "@compiled\n"
        "def twice(n: int) -> int:\n"
        "    return 2 * n\n"
    )
    (tmp_path / "cache").mkdir()
    program = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"  # writing fails, as on a full disk
        "import loops\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "assert loops.twice(21) == 42\n"
    )
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
