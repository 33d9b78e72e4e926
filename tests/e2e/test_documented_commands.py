"""Runs the commands of README and docs; for the others a rule says which test covers them.

Commands that start services are in `test_documented_services.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.settings import read_settings
from orchestrator.launcher import Stack
from tests.contract.repository import ROOT
from tests.support.documented import Command, documented_commands
from tests.support.grpcurl import grpcurl
from tests.support.redis_server import RedisServer

COMMANDS = documented_commands()
DRAFTLOOP = (sys.executable, "-m", "orchestrator.cli")
HTTP_PORT = "127.0.0.1:8000"
# What covers the commands that need more than this machine or take very long.
ELSEWHERE = {
    "make": "tests/contract/test_documents.py knows the targets, and CI runs them",
    "docker": "make test-docker",
    "export": "a shell's own",
    ".venv/bin/python": "make test-bench; here their flags are read",
    "python": "tests/e2e/test_examples.py, and make test-faults with more kills",
}

FILES = ("mkdir", "cp")
ROLES = ("orchestrator", "drafter", "verifier")

NO_CLUSTER = """
apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
users: [{name: none, user: {}}]
current-context: none
"""


def find_commands(*start: str) -> list[Command]:
    commands = [command for command in COMMANDS if command.words[: len(start)] == start]
    assert commands, f"no page names {' '.join(start)} any more"
    return list(dict.fromkeys(commands))


def command_id(command: Command) -> str:
    return f"{command.page}: {command.text}"


def run(
    words: tuple[str, ...], folder: Path, answer: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command in `folder` with the working tree's code; drops a `>> file` redirection."""
    path = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environment}
    plain = words[: words.index(">>")] if ">>" in words else words
    result = subprocess.run(
        plain, cwd=folder, env=path, input=answer, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stderr or result.stdout
    return result


def test_every_command_has_a_rule() -> None:
    ways = {*ELSEWHERE, *FILES, "draftloop", "curl", "git", "grpcurl", "hf", "kubectl", "openssl"}
    assert not [command_id(command) for command in COMMANDS if command.words[0] not in ways]


ASKING = [
    *find_commands("draftloop", "generate"), *find_commands("draftloop", "info"),
    *find_commands("draftloop", "profile"),
]  # fmt: skip


@pytest.mark.parametrize("command", ASKING, ids=command_id)
def test_commands_that_call_a_server(command: Command, stack: Stack, tmp_path: Path) -> None:
    run((*DRAFTLOOP, *command.words[1:], "--server", stack.address), tmp_path)
    assert "--plot" not in command.words or (tmp_path / "costs.svg").exists()


@pytest.mark.parametrize("command", find_commands("draftloop", "batch"), ids=command_id)
def test_documented_batch_file(command: Command, base: str, tmp_path: Path) -> None:
    """The documented request file is answered by the documented command."""
    page = (ROOT / "docs" / "http.md").read_text()
    [line] = [line for line in page.splitlines() if line.startswith('{"custom_id"')]
    (tmp_path / command.words[2]).write_text(f"{line}\n")
    run((*DRAFTLOOP, *command.words[1:], "--server", base), tmp_path)
    assert json.loads((tmp_path / command.words[3]).read_text())["response"]["status_code"] == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
@pytest.mark.parametrize("command", find_commands("curl"), ids=command_id)
def test_curl_commands(command: Command, stack: Stack, tmp_path: Path) -> None:
    assert stack.http_address is not None
    words = tuple(word.replace(HTTP_PORT, stack.http_address) for word in command.words)
    assert '"object"' in run((*words, "--fail-with-body"), tmp_path).stdout


@pytest.mark.parametrize(
    "command",
    [command for command in find_commands("grpcurl") if "-plaintext" in command.words],
    ids=command_id,
)
def test_grpcurl_commands(command: Command, stack: Stack, tmp_path: Path) -> None:
    """Calls with a key over TLS are tested in tests/e2e/test_security.py."""
    assert '"summary"' in grpcurl(command.words[1:], tmp_path, stack.address)[-1]


def test_git_commands(tmp_path: Path) -> None:
    """The git commands work in a clone of this repository, which is what users have."""
    subprocess.run(["git", "clone", "--quiet", ROOT, tmp_path / "clone"], check=True, timeout=120)
    for command in find_commands("git"):
        run(command.words, tmp_path / "clone")


def test_phrases_commands(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        for command in find_commands("draftloop", "phrases"):
            url = {"DRAFTLOOP_PHRASES_URL": server.url}
            run((*DRAFTLOOP, *command.words[1:]), tmp_path, "y\n", **url)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_commands_that_create_certificates_and_keys(tmp_path: Path) -> None:
    for command in find_commands("openssl"):
        run(command.words, tmp_path)
    assert (tmp_path / "verifier.pem").exists()
    for command in find_commands("draftloop", "keys"):
        assert "sha256" in run((*DRAFTLOOP, *command.words[1:]), tmp_path).stdout


def create_certificate_files(folder: Path) -> None:
    """Creates empty files with the names that the pages give the certificates."""
    for name in ("ca.pem", *(f"{role}{kind}" for role in ROLES for kind in (".pem", ".key"))):
        (folder / name).touch()


def test_certificates_are_copied_to_where_compose_mounts_them(tmp_path: Path) -> None:
    create_certificate_files(tmp_path)
    for command in COMMANDS:
        if command.words[0] in FILES:
            run(command.words, tmp_path)
    for role in ROLES:
        names = {path.name for path in (tmp_path / "certificates" / role).iterdir()}
        assert names == {"tls.crt", "tls.key", "ca.crt"}


@pytest.mark.parametrize("command", find_commands("hf"), ids=command_id)
def test_downloads_fail_only_for_lack_of_a_hub(command: Command, tmp_path: Path) -> None:
    """The installation has the command, and it accepts the words."""
    program = Path(sys.executable).with_name("hf")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        (program, *command.words[1:]), cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 1 and "offline mode is enabled" in result.stderr, result.stderr


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
@pytest.mark.parametrize("command", find_commands("kubectl"), ids=command_id)
def test_kubectl_commands_are_valid_up_to_the_missing_cluster(
    command: Command, tmp_path: Path
) -> None:
    """kubectl accepts verb, flags and files: the only error is that no cluster answers."""
    config = tmp_path / "config"
    config.write_text(NO_CLUSTER)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "keys.toml").touch()
    create_certificate_files(tmp_path)
    for model in ("target", "draft"):
        (tmp_path / "models" / model).mkdir(parents=True)
    result = subprocess.run(
        command.words, cwd=tmp_path, env={**os.environ, "KUBECONFIG": str(config)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "refused" in result.stderr, result.stderr


@pytest.mark.parametrize(
    "command", find_commands(".venv/bin/python", "-m", "benchmarks.run"), ids=command_id
)
def test_benchmark_flags_are_accepted(command: Command) -> None:
    """A benchmark takes minutes, so only its flags are parsed here."""
    assert read_settings(command.words[3:]).minutes > 0


def test_results_are_printed_as_a_table(tmp_path: Path) -> None:
    for command in find_commands(".venv/bin/python", "-m", "benchmarks.table"):
        *start, file = command.words[1:]
        result = run((sys.executable, *start, str(ROOT / file)), tmp_path)
        assert "| autoregressive |" in result.stdout
