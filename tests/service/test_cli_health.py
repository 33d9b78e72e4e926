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
def served() -> Iterator[tuple[health.HealthServicer, str]]:
    """A health service whose status can be set, and its address. It knows only the verifier."""
    servicer = health.HealthServicer()
    servicer.set(SERVICES[Role.VERIFIER], SERVING)
    server = grpc.server(ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None).wait()


def asked(role: str, address: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["health", role, "--server", address])
    return result.exit_code, result.output.strip().rpartition(": ")[2]


def test_the_answer_is_status_and_exit_status(served: tuple[health.HealthServicer, str]) -> None:
    servicer, address = served
    assert asked("verifier", address) == (0, "SERVING")
    servicer.set(SERVICES[Role.VERIFIER], NOT_SERVING)
    assert asked("verifier", address) == (1, "NOT_SERVING")
    assert asked("drafter", address) == (1, "NOT_FOUND")
    assert asked("verifier", f"127.0.0.1:{quiet_port()}") == (1, "UNAVAILABLE")


def test_the_probe_says_the_same(
    served: tuple[health.HealthServicer, str], capsys: pytest.CaptureFixture[str]
) -> None:
    servicer, address = served
    assert main([address]) == 0
    servicer.set(SERVICES[Role.VERIFIER], NOT_SERVING)
    assert main([address, SERVICES[Role.VERIFIER]]) == 1
    assert capsys.readouterr().out.split() == ["SERVING", "NOT_SERVING"]
    assert main([]) == 2


def test_proxies_of_the_web_are_not_asked(
    served: tuple[health.HealthServicer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, address = served
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{quiet_port()}")
    assert main([address]) == 0 and asked("verifier", address) == (0, "SERVING")


def test_the_probe_imports_nothing_heavy() -> None:
    """The probe runs every few seconds in every container."""
    code = (
        "import sys, draftloop.rpc.health\n"
        "sys.exit(', '.join({'torch', 'numba', 'pydantic', 'typer'} & set(sys.modules)) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_services_are_those_of_the_protos() -> None:
    files = (generation_pb2, drafter_pb2, verifier_pb2)
    named = {
        service.full_name for file in files for service in file.DESCRIPTOR.services_by_name.values()
    }
    assert set(SERVICES.values()) == named
