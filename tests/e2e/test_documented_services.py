"""Runs the commands of README and docs that start services; only the ports are replaced."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from draftloop.client import Client
from orchestrator.launcher import Stack
from orchestrator.role_process import RoleProcess, Running
from orchestrator.stack_config import StackConfig
from tests.contract.repository import ROOT
from tests.e2e.test_documented_commands import COMMANDS, DRAFTLOOP, command_id, find_commands
from tests.support.documented import Command
from tests.support.forked import ForkedRole, ForkedStack
from tests.support.redis_server import RedisServer
from tests.support.typed import ANY_PORT, Desk

START_S = 240.0
SERVE = [command for command in COMMANDS if command.words[:2] == ("draftloop", "serve")]
PAGES = sorted({command.page for command in SERVE})


class TypedRole(RoleProcess):
    """`draftloop serve ROLE` as a shell starts it. It imports for seconds, so few tests use it."""

    def _spawn(self, flags: list[str]) -> Running:
        command = [*DRAFTLOOP, "serve", self.role, *flags]
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT
            )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_documented_serve_commands(page: str, desk: Desk, stack: Stack) -> None:
    """The services of a page become ready, find one another and end on SIGTERM."""
    commands = [command for command in SERVE if command.page == page and command.words[2] != "ROLE"]
    models = [c for c in commands if c.words[2] != "orchestrator"]
    orchestrators = [c for c in commands if c.words[2] == "orchestrator"]
    how = TypedRole if page == "README.md" else ForkedRole
    with ExitStack() as running:
        started = [start_role(command, desk, stack, ForkedRole, running) for command in models]
        for role in started:
            role.wait_until_ready(time.monotonic() + START_S)
        for command in orchestrators:
            role = start_role(command, desk, stack, how, running)
            role.wait_until_ready(time.monotonic() + START_S)
            started.append(role)
            if page == "README.md":
                assert_generates(role.address)
            stop_role(role)
        for role in started:
            stop_role(role)


def start_role(
    command: Command, desk: Desk, stack: Stack, how: type[RoleProcess], running: ExitStack
) -> RoleProcess:
    """Starts the process. An orchestrator without `--verifiers` gets the session's verifier."""
    name, flags = command.words[2], desk.flags(command.words[3:])
    if name == "orchestrator" and "--verifiers" not in flags:
        flags += ["--verifiers", stack.processes["verifier"].address]
    folder = desk.folder / f"{name}-{len(list(desk.folder.glob(f'{name}-*')))}"
    folder.mkdir()
    role = how(name, desk.listening(name, flags), folder)
    running.callback(role.stop)
    role.start()
    return role


def stop_role(role: RoleProcess) -> None:
    role.kill(signal.SIGTERM)
    assert role.process is not None
    assert role.process.wait(30) == 0, role.last_log_line()


def assert_generates(address: str) -> None:
    with Client(address, timeout=60) as client:
        assert client.generate("def main():", max_tokens=4).token_ids


def test_up_without_a_flag(tmp_path: Path) -> None:
    """A real `draftloop up` until it reports ready; then SIGTERM, like Ctrl-C, stops everything."""
    assert find_commands("draftloop", "up")
    (tmp_path / "ports.toml").write_text(ANY_PORT)
    command = [*DRAFTLOOP, "up", "--config", "ports.toml"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        output: list[str] = []
        for line in launcher.stdout:
            output.append(line)
            if line.startswith("try:"):
                break
        assert output[-1].startswith("try:"), output
        address = output[-1].split()[-1]
        assert_generates(address)
        launcher.send_signal(signal.SIGTERM)
        assert "stopped" in launcher.stdout.read()
    assert launcher.returncode == 0


WITH_FLAGS = [command for command in find_commands("draftloop", "up") if len(command.words) > 2]


@pytest.mark.parametrize("command", WITH_FLAGS, ids=command_id)
def test_up_with_flags(command: Command, desk: Desk) -> None:
    (desk.folder / "ports.toml").write_text(ANY_PORT)
    with ExitStack() as running:
        # There need not be a GPU here.
        words = tuple("cpu" if word == "cuda" else word for word in command.words[2:])
        if "--phrases-url" in words:
            url = running.enter_context(RedisServer(desk.folder)).url
            words = tuple(url if word.startswith("redis://") else word for word in words)
        options = as_keyword_arguments(desk.flags(words))
        config = StackConfig.read(desk.folder / "ports.toml", **options)
        stack = running.enter_context(ForkedStack(config))
        assert_generates(stack.address)


def as_keyword_arguments(flags: Sequence[str]) -> dict[str, str]:
    """Flags and values as the keyword arguments that the command line passes on."""
    names = (flag.removeprefix("--").replace("-", "_") for flag in flags[::2])
    return dict(zip(names, flags[1::2], strict=True))
