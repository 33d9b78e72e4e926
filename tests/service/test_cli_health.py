"""`draftloop health` and the probe of the images, against servers with a known health."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from typer.testing import CliRunner

from draftloop.rpc.health import main
from orchestrator.cli import app
from orchestrator.cli_health import SERVICES, Role
from protos import drafter_pb2, generation_pb2, verifier_pb2
from tests.support.ports import quiet_port

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def health_server() -> Iterator[tuple[health.HealthServicer, str]]:
    """A health service whose status can be set, and its address. It knows only the verifier."""
    servicer = health.HealthServicer()
    servicer.set(SERVICES[Role.VERIFIER], SERVING)
    server = grpc.server(ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None).wait()


def run_health_command(role: str, address: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["health", role, "--server", address])
    return result.exit_code, result.output.strip().rpartition(": ")[2]


def test_health_command_prints_status_and_sets_exit_status(
    health_server: tuple[health.HealthServicer, str],
) -> None:
    servicer, address = health_server
    assert run_health_command("verifier", address) == (0, "SERVING")
    servicer.set(SERVICES[Role.VERIFIER], NOT_SERVING)
    assert run_health_command("verifier", address) == (1, "NOT_SERVING")
    assert run_health_command("drafter", address) == (1, "NOT_FOUND")
    assert run_health_command("verifier", f"127.0.0.1:{quiet_port()}") == (1, "UNAVAILABLE")


def test_probe_reports_the_same_status(
    health_server: tuple[health.HealthServicer, str], capsys: pytest.CaptureFixture[str]
) -> None:
    servicer, address = health_server
    assert main([address]) == 0
    servicer.set(SERVICES[Role.VERIFIER], NOT_SERVING)
    assert main([address, SERVICES[Role.VERIFIER]]) == 1
    assert capsys.readouterr().out.split() == ["SERVING", "NOT_SERVING"]
    assert main([]) == 2


def test_health_checks_ignore_web_proxies(
    health_server: tuple[health.HealthServicer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, address = health_server
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{quiet_port()}")
    assert main([address]) == 0 and run_health_command("verifier", address) == (0, "SERVING")


def test_probe_imports_no_heavy_modules() -> None:
    """The probe runs every few seconds in every container."""
    code = (
        "import sys, draftloop.rpc.health\n"
        "sys.exit(', '.join({'torch', 'numba', 'pydantic', 'typer'} & set(sys.modules)) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_service_names_match_the_protos() -> None:
    files = (generation_pb2, drafter_pb2, verifier_pb2)
    declared = {
        service.full_name for file in files for service in file.DESCRIPTOR.services_by_name.values()
    }
    assert set(SERVICES.values()) == declared
