"""Starting and stopping: a role that cannot start prints one line and exits with status 2."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from draftloop.config import bundled_model
from draftloop.errors import StartupFailure
from draftloop.model_info import vocabulary_fingerprint
from orchestrator.launcher import Stack
from orchestrator.role_process import RoleProcess
from protos import drafter_pb2_grpc, generation_pb2_grpc, verifier_pb2_grpc
from protos import generation_pb2 as pb
from protos import speculation_pb2 as shared
from tests.e2e.client import Case, RetryInfo
from tests.e2e.conftest import InProcess
from tests.e2e.test_misbehaving_services import drafter_info
from tests.faults import fakes
from tests.support.rich_errors import detail
from tests.support.typed import ANY_PORT
from tests.support.waiting import until

# Time for a process that imports everything on a busy machine.
START_S, STOP_S = 240.0, 60.0
TIMEOUT_S = 120.0  # for an orchestrator's search for a verifier


def startup_refusal(module: str, *flags: str, **environment: str) -> str:
    """The last line of a process that must exit with status 2 and without a traceback."""
    result = subprocess.run(
        [sys.executable, "-m", module, *flags],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    return result.stderr.strip().splitlines()[-1]


@contextmanager
def running_role(role: str, flags: list[str], folder: Path) -> Iterator[RoleProcess]:
    """The role's process, which is killed at the end whatever happens."""
    process = RoleProcess(role, flags, folder)
    process.start()
    try:
        yield process
    finally:
        process.kill()


@pytest.mark.parametrize("module", ["orchestrator", "verifier_service"])
def test_unknown_flag_is_refused(module: str) -> None:
    assert "--no-such-flag" in startup_refusal(module, "--no-such-flag", "1")


@pytest.mark.parametrize("name", ["DRAFTLOOP_ORCHESTRATOR_LISTNE", "DRAFTLOOP_VERIFER_MODEL"])
def test_unknown_environment_variable_is_refused(name: str) -> None:
    assert name in startup_refusal("orchestrator", **{name: "x"})


@pytest.mark.parametrize("flag", ["--listen=nowhere", "--default-strategy=magic"])
def test_invalid_value_is_refused(flag: str) -> None:
    name = flag.removeprefix("--").partition("=")[0].replace("-", "_")
    assert name in startup_refusal("orchestrator", *flag.split("="))


def test_missing_model_folder_is_refused(tmp_path: Path) -> None:
    line = startup_refusal(
        "verifier_service", "--listen", "127.0.0.1:0", "--model", str(tmp_path / "no")
    )
    assert "model" in line and str(tmp_path / "no") in line


def test_more_ranks_than_heads_is_refused() -> None:
    line = startup_refusal(
        "verifier_service", "--listen", "127.0.0.1:0", "--tensor-parallel-size", "3"
    )
    assert "tensor_parallel_size" in line and "4 heads" in line and "got 3" in line


def test_missing_tokenizer_is_refused(tmp_path: Path) -> None:
    assert str(tmp_path) in startup_refusal("orchestrator", "--tokenizer", str(tmp_path))


@pytest.mark.parametrize(
    ("module", "flag"),
    [
        ("orchestrator", "--listen"),
        ("orchestrator", "--http-listen"),
        ("verifier_service", "--listen"),
        ("drafter_service", "--listen"),
        ("drafter_service", "--metrics-listen"),
    ],
)
def test_occupied_port_is_refused(module: str, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        line = startup_refusal(module, flag, address)
        assert address in line and flag in line


def test_sigterm_while_waiting_for_a_verifier(tmp_path: Path) -> None:
    """SIGTERM stops a role that is waiting for other services."""
    flags = ["--listen", "127.0.0.1:0", "--verifiers", "127.0.0.1:1"]
    with running_role("orchestrator", flags, tmp_path) as waiting:
        until(lambda: "waiting for a verifier" in waiting.log_file.read_text(), START_S)
        waiting.kill(signal.SIGTERM)
        assert waiting.process is not None and waiting.process.wait(STOP_S) == 0


def test_sigterm_lets_running_requests_finish(
    stack: Stack, tmp_path: Path, cases: list[Case]
) -> None:
    flags = ["--listen", "127.0.0.1:0", "--verifiers", stack.processes["verifier"].address]
    flags += ["--drafters", stack.processes["drafter"].address]
    with running_role("orchestrator", flags, tmp_path) as role:
        role.wait_until_ready(time.monotonic() + START_S)
        with grpc.insecure_channel(role.address) as channel:
            stub = generation_pb2_grpc.GenerationStub(channel)
            parameters = cases[7].parameters("autoregressive", ignore_eos=True)
            call = stub.Generate(pb.GenerateRequest(parameters=parameters))
            next(call)
            role.kill(signal.SIGTERM)
            *_, last = call
        assert last.summary.output_tokens == cases[7].max_tokens
        assert role.process is not None and role.process.wait(STOP_S) == 0


def test_services_end_when_their_launcher_is_killed(tmp_path: Path) -> None:
    """SIGKILL gives the launcher no time to stop its services; they end by themselves."""
    config = tmp_path / "stack.toml"
    config.write_text(ANY_PORT)
    command = [sys.executable, "-m", "orchestrator.cli", "up", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            if line.startswith("ready") and "drafter" in line:  # the orchestrator is still starting
                break
        family = psutil.Process(launcher.pid).children(recursive=True)
        launcher.kill()
    assert len(family) >= 2
    _, alive = psutil.wait_procs(family, timeout=STOP_S)
    for process in alive:
        process.kill()
    assert not alive


async def test_drafter_with_another_vocabulary_is_refused(
    stack: Stack, orchestrator: InProcess, tmp_path: Path
) -> None:
    """The orchestrator refuses to start, and names both fingerprints."""
    info: Any = shared.ModelInfo()
    info.CopyFrom(await drafter_info(stack))
    info.vocabulary_fingerprint = "0123456789abcdef"
    fake = fakes.FakeDrafter(info, fakes.no_draft)
    add = drafter_pb2_grpc.add_DrafterServicer_to_server
    async with fakes.listening(add, fake) as drafter:
        flags = ["--listen", "127.0.0.1:0", "--drafters", drafter]
        flags += ["--verifiers", stack.processes["verifier"].address]
        with running_role("orchestrator", flags, tmp_path) as role:
            with pytest.raises(StartupFailure) as caught:
                await asyncio.to_thread(role.wait_until_ready, time.monotonic() + START_S)
            assert role.process is not None and role.process.wait(STOP_S) == 2
    assert "0123456789abcdef" in str(caught.value)
    assert vocabulary_fingerprint(bundled_model("verifier")) in str(caught.value)


async def test_missing_verifier_is_reported_at_once(
    stack: Stack, orchestrator: InProcess, cases: list[Case]
) -> None:
    """UNAVAILABLE with a retry hint, long before any timeout."""
    add = verifier_pb2_grpc.add_VerifierServicer_to_server
    async with grpc.aio.insecure_channel(stack.processes["verifier"].address) as channel:
        flaky = fakes.FlakyVerifier(channel, "gone")
        async with fakes.listening(add, flaky) as verifier:
            running = orchestrator(verifiers=verifier, connect_timeout_s=TIMEOUT_S)
            address = await running.__aenter__()
        try:
            async with grpc.aio.insecure_channel(address) as client_channel:
                stub = generation_pb2_grpc.GenerationStub(client_channel)
                request = pb.GenerateOnceRequest(parameters=cases[0].parameters("speculative"))
                sent = time.monotonic()
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.GenerateOnce(request)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert detail(caught.value, RetryInfo).retry_delay.ToMilliseconds() > 0
            assert time.monotonic() - sent < TIMEOUT_S / 2
        finally:
            await running.__aexit__(None, None, None)


def test_sigterm_stops_a_role_while_its_model_loads(tmp_path: Path) -> None:
    """Loading can take minutes, after which a supervisor would kill the process."""
    command = [sys.executable, "-m", "verifier_service", "--model", str(bundled_model("verifier"))]
    file = tmp_path / "log"
    with file.open("w") as log:
        flags = ["--inflate", "1B", "--listen", "127.0.0.1:0"]
        role = subprocess.Popen([*command, *flags], stderr=log)
    try:
        while '"loading"' not in file.read_text():
            assert role.poll() is None, file.read_text()
            time.sleep(0.05)
        time.sleep(1.0)
        role.send_signal(signal.SIGTERM)
        assert role.wait(60) == 0
    finally:
        role.kill()
    assert '"stopped"' in file.read_text() and '"warm"' not in file.read_text()
