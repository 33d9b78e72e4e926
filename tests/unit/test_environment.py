"""Environment variables: every name with our prefix is known to some role, or refused."""

from __future__ import annotations

import re

import pytest

from drafter_service.config import DrafterSettings
from draftloop import environment
from draftloop.config import DEFAULT_PORTS, ServiceSettings
from draftloop.errors import StartupFailure
from draftloop.rpc import health
from orchestrator.config import OrchestratorSettings
from tests.contract.repository import ROOT
from verifier_service.config import VerifierSettings

KINDS: dict[str, type[ServiceSettings]] = {
    "orchestrator": OrchestratorSettings,
    "drafter": DrafterSettings,
    "verifier": VerifierSettings,
}
SUFFIXES = {".md", ".py", ".yml", ".yaml", ".env", ".sh", ".toml"}


def read_settings(role: str) -> ServiceSettings:
    return KINDS[role].from_command_line([])


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("DRAFTLOOP_ORCHESTRATOR_LISTNE", "DRAFTLOOP_ORCHESTRATOR_LISTEN"),
        ("draftloop_orchestrator_listne", "DRAFTLOOP_ORCHESTRATOR_LISTEN"),
        ("DRAFTLOOP_ORCHESTRTOR_LISTEN", "DRAFTLOOP_ORCHESTRATOR_LISTEN"),
        ("DRAFTLOOP_VERIFER_MODEL", "DRAFTLOOP_VERIFIER_MODEL"),
        ("DRAFTLOOP_DRAFTERS_MODEL", "DRAFTLOOP_DRAFTER_MODEL"),
        ("DRAFTLOOP_PHRASE_URL", "DRAFTLOOP_PHRASES_URL"),
        ("DRAFTLOOP_APIKEY", "DRAFTLOOP_API_KEY"),
        ("DRAFTLOOP_ORCHESTRATOR_HTTP_PORT", "DRAFTLOOP_ORCHESTRATOR_HTTP_LISTEN"),
        ("DRAFTLOOP_", ""),
        ("DRAFTLOOP_FOO", ""),
        ("DRAFTLOOP_ORCHESTRATOR_FOO", ""),
    ],
)
def test_unknown_variable_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, nearest: str
) -> None:
    monkeypatch.setenv(name, "8080")
    with pytest.raises(StartupFailure) as caught:
        read_settings("orchestrator")
    hint = f"; the nearest that is known is {nearest}" if nearest else ""
    assert str(caught.value) == f"{name}: unknown setting{hint}"


@pytest.mark.parametrize("role", KINDS)
def test_unknown_flags_are_reported_without_usage(
    role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal(*flags: str) -> str:
        with pytest.raises(StartupFailure) as caught:
            KINDS[role].from_command_line(list(flags))
        return str(caught.value)

    message = "--listne: unknown flag; the nearest that is known is --listen"
    assert refusal("--listne", "x") == refusal("--listne=x") == message
    assert refusal("--listne", "x", "--foo") == f"{message}\n--foo: unknown flag"
    assert refusal("--listen") == "argument --listen: expected one argument"
    assert refusal("x") == "unrecognized arguments: x"
    assert capsys.readouterr().err == ""


def test_all_unknown_variables_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAFTLOOP_VERIFIER_MODLE", "DRAFTLOOP_PHRASES", "DRAFTLOOP_DRAFTER_MODLE"):
        monkeypatch.setenv(name, "x")
    with pytest.raises(StartupFailure) as caught:
        read_settings("verifier")
    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "DRAFTLOOP_PHRASES", "DRAFTLOOP_VERIFIER_MODLE",
    ]  # fmt: skip


@pytest.mark.parametrize("role", KINDS)
def test_variables_of_other_roles_are_ignored(monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    for other in KINDS.keys() - {role}:
        monkeypatch.setenv(f"DRAFTLOOP_{other.upper()}_LISTNE", "x")  # the other role refuses it
    for name in environment.SHARED:
        monkeypatch.setenv(name, "memory://")
    monkeypatch.setenv("DRAFTLOOPS_MODEL", "x")
    assert read_settings(role)


@pytest.mark.parametrize("role", KINDS)
@pytest.mark.parametrize(
    "service",
    ["DRAFTLOOP", "DRAFTLOOP_VERIFIER", "DRAFTLOOP_DRAFTER_HEADLESS", "DRAFTLOOP_REDIS",
     "DRAFTLOOP_ORCHESTRATOR"],
)  # fmt: skip
def test_service_link_variables_are_ignored(
    monkeypatch: pytest.MonkeyPatch, role: str, service: str
) -> None:
    """Variables that Kubernetes and Docker set in every container beside such a service."""
    port = f"{service}_PORT_50052_TCP"
    for name, value in {
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "50052",
        f"{service}_SERVICE_PORT_GRPC": "50052",
        f"{service}_PORT": "tcp://10.0.0.1:50052",
        port: "tcp://10.0.0.1:50052",
        f"{port}_PROTO": "tcp",
        f"{port}_PORT": "50052",
        f"{port}_ADDR": "10.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    assert read_settings(role)


@pytest.mark.parametrize("kind", [OrchestratorSettings, DrafterSettings])
def test_shared_phrases_url_is_overridden_by_the_roles_own(
    monkeypatch: pytest.MonkeyPatch, kind: type[OrchestratorSettings | DrafterSettings]
) -> None:
    def used(*flags: str) -> str:
        return kind.from_command_line(list(flags)).phrases_url

    assert used() == "memory://"
    monkeypatch.setenv("DRAFTLOOP_PHRASE_LOG", "redis://older-name")
    assert used() == "redis://older-name"
    monkeypatch.setenv("DRAFTLOOP_PHRASES_URL", "redis://everybodys")
    assert used() == "redis://everybodys"
    monkeypatch.setenv(f"{kind.model_config['env_prefix']}PHRASES_URL", "redis://own")
    assert used() == "redis://own"
    assert used("--phrases-url", "redis://flag") == "redis://flag"
    assert kind(phrases_url="redis://code").phrases_url == "redis://code"


def test_invalid_shared_phrases_url_is_reported_without_its_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRAFTLOOP_PHRASES_URL", "http://u:secret@h")
    with pytest.raises(StartupFailure, match="phrases_url: must start with one of") as caught:
        read_settings("drafter")
    assert "secret" not in str(caught.value)
    assert read_settings("verifier")


def test_all_documented_variables_are_known() -> None:
    """Every name that the repository mentions can be set without stopping a role."""
    assert environment.PROBE_TLS == health.VARIABLES
    assert set(environment.ROLES) == set(DEFAULT_PORTS)
    files = [ROOT / name for name in ("README.md", "Makefile", "docker-compose.yml")]
    for folder in ("deploy", "docs", "examples", "benchmarks", "orchestrator", "draftloop"):
        files += [file for file in (ROOT / folder).rglob("*") if file.suffix in SUFFIXES]
        files += (ROOT / folder).glob("Dockerfile")
    written = {
        name
        for file in files
        for name in re.findall(r"DRAFTLOOP(?:_[A-Z0-9]+)+", file.read_text(encoding="utf-8"))
    }
    assert "DRAFTLOOP_VERIFIER_TENSOR_PARALLEL_SIZE" in written
    for role, kind in KINDS.items():
        of_role = environment.prefix_of(role)
        assert not environment.unknown_names(of_role, kind.model_fields, dict.fromkeys(written, ""))
