"""TLS between the roles as Kubernetes, Compose and the documents set it up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftloop.config import DEFAULT_PORTS
from draftloop.rpc import health
from orchestrator.config import OrchestratorSettings
from tests.contract.repository import ROOT
from tests.deploy.test_compose import services
from tests.deploy.test_manifests import every_overlay, full_name, settings
from tests.support.documented import documented_commands
from tests.support.manifests import OTHER_COMPONENTS, ROLES, Manifests, combined

FILES = {"ca": "ca.crt", "certificate": "tls.crt", "key": "tls.key"}  # cert-manager's names
MODEL_ROLES = ("verifier", "drafter")
# The timeout of the probe in deploy/Dockerfile: it starts Python beside a busy engine.
PROBE_TIMEOUT_S = 15


def with_tls(overlay: str) -> Manifests:
    """The overlay with mutual TLS and all other components, as keys are mounted too."""
    return combined(overlay, *OTHER_COMPONENTS)


def tls_files(role: str, read: Any) -> dict[str, Path | None]:
    """The files that the role uses for connections between roles."""
    if isinstance(read, OrchestratorSettings):
        assert read.tls_certificate is None  # TLS of the public ports is set up separately
        return {name: getattr(read, f"services_tls_{name}") for name in FILES}
    return {
        "ca": read.tls_client_ca,
        "certificate": read.tls_certificate,
        "key": read.tls_key,
    }


@every_overlay
@pytest.mark.parametrize("role", ROLES)
def test_role_reads_the_files_of_its_secret(
    overlay: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = with_tls(overlay)
    container, pod = manifests.container(role), manifests.pod(role)
    (volume,) = (each for each in pod["volumes"] if each["name"] == "tls")
    assert volume["secret"] == {"secretName": f"{role}-tls", "defaultMode": 0o440}
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "tls")
    assert mount["readOnly"] and "subPath" not in mount
    folder = Path(mount["mountPath"])
    other_mounts = [Path(each["mountPath"]) for each in container["volumeMounts"] if each != mount]
    # Nothing can be mounted inside a read-only mount.
    assert not [path for path in other_mounts if folder.is_relative_to(path)]
    read = settings(manifests, role, monkeypatch)
    assert tls_files(role, read) == {name: folder / file for name, file in FILES.items()}


@every_overlay
@pytest.mark.parametrize("role", MODEL_ROLES)
def test_probes_use_tls_and_have_enough_time(overlay: str, role: str) -> None:
    container = with_tls(overlay).container(role)
    alive = ["python", "-m", health.__name__, f"127.0.0.1:{DEFAULT_PORTS[role]}"]
    ready = [*alive, full_name(role)]
    for probe, command in (("startup", ready), ("readiness", ready), ("liveness", alive)):
        probe_settings = container[f"{probe}Probe"]
        assert probe_settings["exec"] == {"command": command}
        assert "grpc" not in probe_settings, "one of them alone is valid"
        assert probe_settings["timeoutSeconds"] == PROBE_TIMEOUT_S > health.TIMEOUT_S
    probed = health.tls_from(with_tls(overlay).environment(role))
    assert probed is not None and probed.server_name == role  # the name in dns:///verifier:50053
    assert f"--timeout={PROBE_TIMEOUT_S}s" in (ROOT / "deploy" / "Dockerfile").read_text()


@pytest.mark.parametrize("role", ROLES)
def test_page_creates_the_secrets(role: str) -> None:
    (command,) = (each for each in documented_commands() if f"{role}-tls" in each.words)
    files = {"tls.crt": f"{role}.pem", "tls.key": f"{role}.key", "ca.crt": "ca.pem"}
    assert command.words[-4:] == (
        f"{role}-tls", *(f"--from-file={file}={source}" for file, source in files.items()),
    )  # fmt: skip
    assert set(files) == set(FILES.values())


@pytest.mark.parametrize("role", ROLES)
def test_compose_and_kubernetes_set_the_same_tls_settings(role: str) -> None:
    service = services("deploy/compose.mutual-tls.yml")[role]
    environment = with_tls("cpu-demo").environment(role)
    assert service["environment"] == {
        name: value for name, value in environment.items() if "TLS" in name
    }
    (volume,) = service["volumes"]
    assert volume == f"${{CERTIFICATES:-./certificates}}/{role}:/etc/draftloop-tls:ro"
