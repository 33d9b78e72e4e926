"""The manifests agree with the code: ports, settings, health checks, drains, security."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from draftloop import __version__
from draftloop.config import DEFAULT_PORTS, ServiceSettings
from orchestrator.config import OrchestratorSettings
from phrase_store.session import BYTES_PER_TOKEN, MAX_TOKENS
from tests.contract import configuration_page
from tests.contract.repository import ROOT, fenced
from tests.support.documented import documented_commands
from tests.support.manifests import (
    AUTOSCALING,
    OTHER_COMPONENTS,
    OVERLAYS,
    PART_LABEL,
    ROLES,
    WORKLOADS,
    Manifests,
    combined,
    loader,
    rendered,
)

SERVICES = {"orchestrator": "Generation", "drafter": "Drafter", "verifier": "Verifier"}
STUBS = {"orchestrator": "generation", "drafter": "drafter", "verifier": "verifier"}
# Between the end of the grace period and SIGKILL, for the last requests and the exit.
SPARE_S = 5

every_overlay = pytest.mark.parametrize("overlay", OVERLAYS)
every_role = pytest.mark.parametrize("role", ROLES)


def settings(manifests: Manifests, role: str, monkeypatch: pytest.MonkeyPatch) -> ServiceSettings:
    """The settings of the role in its pod. An unknown variable or an invalid value is fatal."""
    for name, value in manifests.environment(role).items():
        monkeypatch.setenv(name, value)
    kind = configuration_page.settings_of(configuration_page.ROLES[role])
    return kind.from_command_line([])


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def full_name(role: str) -> str:
    """The full name of a role's gRPC service, by its proto."""
    stubs = importlib.import_module(f"protos.{STUBS[role]}_pb2")
    name: str = stubs.DESCRIPTOR.services_by_name[SERVICES[role]].full_name
    return name


@every_overlay
@every_role
def test_settings_are_known_and_valid(
    overlay: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = combined(overlay)
    assert settings(manifests, role, monkeypatch)
    prefix = f"DRAFTLOOP_{role.upper()}_"
    names = manifests.environment(role)
    assert not [name for name in names if name.startswith("DRAFTLOOP_") and prefix not in name]


@every_role
def test_container_ports_match_the_settings(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = combined("cpu-demo")
    read: Any = settings(manifests, role, monkeypatch)
    ports = {"grpc": port_of(read.listen)}
    if role == "orchestrator":
        ports["http"] = port_of(read.http_listen)
    else:
        ports["metrics"] = port_of(read.metrics_listen)
    assert manifests.ports(role) == ports
    assert ports["grpc"] == DEFAULT_PORTS[role]


def test_services_target_existing_ports() -> None:
    manifests = combined("gpu")
    for service in manifests.of_kind("Service"):
        (workload,) = manifests.selected_by(service["spec"]["selector"])
        assert workload == service["metadata"]["name"]
        ports = manifests.ports(workload)
        for port in service["spec"]["ports"]:
            assert port["port"] == ports[port["targetPort"]]


def service_calls(manifests: Manifests) -> Iterator[tuple[str, str, int]]:
    """Caller, service and port of every address in the settings."""
    for role in ROLES:
        for name, value in manifests.environment(role).items():
            if "://" in value and not name.endswith("LISTEN"):
                for address in value.split(","):
                    url = urlsplit(address)
                    host, _, port = (url.netloc or url.path.strip("/")).rpartition(":")
                    yield role, host, int(port)


@every_overlay
def test_addresses_in_settings_name_services(overlay: str) -> None:
    manifests = combined(overlay)
    calls = list(service_calls(manifests))
    assert {(role, host) for role, host, _ in calls} == {
        ("orchestrator", "verifier"),
        ("orchestrator", "drafter"),
        ("orchestrator", "redis"),
        ("drafter", "redis"),
    }
    for _, host, port in calls:
        service = manifests.one("Service", host)["spec"]
        assert port in [each["port"] for each in service["ports"]]
        # A name of several replicas must resolve to all of their addresses, not to a virtual one.
        assert (service.get("clusterIP") == "None") == (host in ROLES)


def test_verifier_stateful_set_names_its_headless_service() -> None:
    manifests = combined("cpu-demo")
    service = manifests.one("StatefulSet", "verifier")["spec"]["serviceName"]
    assert manifests.one("Service", service)["spec"]["clusterIP"] == "None"


@every_role
def test_probes_name_the_grpc_services(role: str) -> None:
    container = combined("cpu-demo").container(role)
    port = DEFAULT_PORTS[role]
    ready = {"port": port, "service": full_name(role)}
    alive = {"port": port}
    assert container["readinessProbe"]["grpc"] == ready
    assert container["livenessProbe"]["grpc"] == alive
    # The orchestrator starts before its verifiers; waiting for them is no reason to restart it.
    assert container["startupProbe"]["grpc"] == (alive if role == "orchestrator" else ready)


@pytest.mark.parametrize(("overlay", "minutes"), [("cpu-demo", 5), ("gpu", 30)])
def test_startup_probes_allow_time_to_load_models(overlay: str, minutes: int) -> None:
    for role in ("drafter", "verifier"):
        probe = combined(overlay).container(role)["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] >= minutes * 60


@every_overlay
@every_role
def test_termination_grace_period_covers_the_drain(
    overlay: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = combined(overlay)
    grace_s = settings(manifests, role, monkeypatch).grace_period_s
    hook_s = manifests.container(role)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert hook_s + grace_s + SPARE_S <= manifests.pod(role)["terminationGracePeriodSeconds"]


@every_overlay
def test_disruption_budgets_cover_each_role_once(overlay: str) -> None:
    manifests = combined(overlay)
    covered = [
        manifests.selected_by(budget["spec"]["selector"]["matchLabels"])
        for budget in manifests.of_kind("PodDisruptionBudget")
    ]
    assert sorted(covered) == sorted([role] for role in ROLES)


@every_overlay
def test_selectors_match_only_their_own_pods(overlay: str) -> None:
    manifests = combined(overlay)
    for name, workload in manifests.workloads.items():
        assert manifests.selected_by(workload["spec"]["selector"]["matchLabels"]) == [name]


@every_overlay
def test_pods_are_restricted(overlay: str) -> None:
    """The Pod Security Standard that the namespace enforces, and a read-only root filesystem."""
    manifests = combined(overlay)
    labels = manifests.one("Namespace", "draftloop")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in (*manifests.pods(), loader()["spec"]):
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@every_overlay
def test_pods_get_no_token_and_no_service_variables(overlay: str) -> None:
    """No token, and no service variables, whose names could look like unknown settings."""
    manifests = combined(overlay)
    for name in manifests.workloads:
        pod = manifests.pod(name)
        account = manifests.one("ServiceAccount", pod["serviceAccountName"])
        assert not pod["automountServiceAccountToken"]
        assert not account["automountServiceAccountToken"]
        assert not pod["enableServiceLinks"]


@every_overlay
def test_resources_are_bounded(overlay: str) -> None:
    manifests = combined(overlay)
    for name in manifests.workloads:
        resources = manifests.container(name)["resources"]
        assert {"cpu", "memory", "ephemeral-storage"} <= set(resources["requests"])
        assert {"memory", "ephemeral-storage"} <= set(resources["limits"])


@pytest.mark.parametrize(("overlay", "context"), [("cpu-demo", 2048), ("gpu", 131_072)])
def test_orchestrator_memory_limit_holds_all_phrases(
    overlay: str, context: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory limit suffices for full phrase indexes and the maximum of long requests.

    Prompt and prediction of each may fill a context.
    """
    manifests = combined(overlay)
    configured = settings(manifests, "orchestrator", monkeypatch)
    assert isinstance(configured, OrchestratorSettings)
    limit = manifests.container("orchestrator")["resources"]["limits"]["memory"]
    shared = configured.phrases_mib * configured.phrases_namespaces << 20
    own = min(MAX_TOKENS, 2 * context) * BYTES_PER_TOKEN * configured.max_requests
    process = 256 << 20
    assert int(limit[:-2]) << {"Mi": 20, "Gi": 30}[limit[-2:]] >= shared + own + process


def test_accelerators_are_requested_and_tolerated() -> None:
    manifests = combined("gpu")
    for role in ("drafter", "verifier"):
        resources = manifests.container(role)["resources"]
        assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"]
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in (
            manifests.pod(role)["tolerations"]
        )
        assert manifests.environment(role)[f"DRAFTLOOP_{role.upper()}_DEVICE"] == "cuda"
    assert "nodeSelector" not in manifests.pod("orchestrator")


def test_split_model_has_a_device_per_rank_and_shared_memory() -> None:
    manifests = combined("gpu", "tensor-parallel")
    resources = manifests.container("verifier")["resources"]
    ranks = manifests.environment("verifier")["DRAFTLOOP_VERIFIER_TENSOR_PARALLEL_SIZE"]
    assert ranks == resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"]
    assert resources["limits"]["memory"]  # the overlay's limit is kept
    mounts = {
        each["mountPath"]: each["name"] for each in manifests.container("verifier")["volumeMounts"]
    }
    volumes = {each["name"]: each for each in manifests.pod("verifier")["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    assert "DRAFTLOOP_DRAFTER_TENSOR_PARALLEL_SIZE" not in manifests.environment("drafter")


def test_loader_writes_where_the_roles_read() -> None:
    """The loader pod has the roles' user and group, an image in use anyway, and no namespace.

    `kubectl -n` names the namespace.
    """
    manifests, pod = combined("gpu"), loader()["spec"]
    assert "namespace" not in loader()["metadata"]
    verifier, (container,) = manifests.pod("verifier"), pod["containers"]
    assert pod["securityContext"] == verifier["securityContext"]
    (mount,) = container["volumeMounts"]
    assert not mount.get("readOnly")
    assert mount["mountPath"] in [
        role_mount["mountPath"] for role_mount in manifests.container("verifier")["volumeMounts"]
    ]
    (volume,) = pod["volumes"]
    claim = volume["persistentVolumeClaim"]
    assert not claim.get("readOnly")
    assert manifests.one("PersistentVolumeClaim", claim["claimName"])
    assert container["image"] == manifests.container("orchestrator")["image"]


def test_weights_are_mounted_at_the_configured_path() -> None:
    manifests = combined("gpu")
    for role, name in (("orchestrator", "TOKENIZER"), ("drafter", "MODEL"), ("verifier", "MODEL")):
        (mount,) = [
            mount
            for mount in manifests.container(role)["volumeMounts"]
            if mount["name"] == "weights"
        ]
        assert mount["readOnly"]
        folder = manifests.environment(role)[f"DRAFTLOOP_{role.upper()}_{name}"]
        assert folder.startswith(mount["mountPath"] + "/")
        (volume,) = [each for each in manifests.pod(role)["volumes"] if each["name"] == "weights"]
        claim = volume["persistentVolumeClaim"]["claimName"]
        assert manifests.one("PersistentVolumeClaim", claim)


@every_overlay
def test_images_have_the_version_of_the_code(overlay: str) -> None:
    manifests = combined(overlay)
    for role in ROLES:
        image = manifests.container(role)["image"]
        expected = "draftloop-orchestrator" if role == "orchestrator" else "draftloop-model"
        assert image.startswith(f"{expected}:{__version__}")
    assert not manifests.container("redis")["image"].endswith(("redis", ":latest"))


@every_overlay
def test_page_documents_how_each_image_is_built(overlay: str) -> None:
    """A page builds each image with exactly its tag; padded steps on GPUs need a compiler."""
    built = {
        command.words[command.words.index("-t") + 1]: command.text
        for command in documented_commands()
        if command.words[:2] == ("docker", "build")
    }
    manifests = combined(overlay)
    images = {manifests.container(role)["image"] for role in ROLES}
    assert images <= set(built)
    compiled = {image for image in images if "--build-arg COMPILER=1" in built[image]}
    assert compiled == {image for image in images if image.endswith("-cuda")}
    assert bool(compiled) == (overlay == "gpu")


@every_overlay
def test_keys_are_read_from_the_documented_secret(
    overlay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = combined(overlay, "api-keys")
    read = settings(manifests, "orchestrator", monkeypatch)
    assert isinstance(read, OrchestratorSettings) and read.api_keys is not None
    (mount,) = (
        mount
        for mount in manifests.container("orchestrator")["volumeMounts"]
        if mount["mountPath"] == str(read.api_keys.parent)
    )
    assert mount["readOnly"] and "subPath" not in mount
    (volume,) = (
        volume
        for volume in manifests.pod("orchestrator")["volumes"]
        if volume["name"] == mount["name"]
    )
    create = ("kubectl", "-n", "draftloop", "create", "secret", "generic")
    words = (*create, volume["secret"]["secretName"])
    (command,) = (each for each in documented_commands() if each.words[:7] == words)
    assert command.words[7:] == (f"--from-file={read.api_keys.name}",)


def test_route_targets_the_http_port_without_a_timeout() -> None:
    manifests = combined("gpu", "http-route")
    (route,) = manifests.of_kind("HTTPRoute")
    (rule,) = route["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    (port,) = (
        port
        for port in manifests.one("Service", backend["name"])["spec"]["ports"]
        if port["port"] == backend["port"]
    )
    assert port["name"] == "http"
    assert rule["timeouts"] == {"request": "0s"}
    # Paths that need no key are not published.
    assert [match["path"]["value"] for match in rule["matches"]] == ["/v1"]


@pytest.mark.parametrize("component", AUTOSCALING)
@every_overlay
def test_autoscaled_workloads_set_no_replica_count(overlay: str, component: str) -> None:
    manifests = combined(overlay, component)
    scalers = manifests.of_kind("HorizontalPodAutoscaler", "ScaledObject")
    targets = [scaler["spec"]["scaleTargetRef"] for scaler in scalers]
    assert {target["name"] for target in targets} == set(ROLES)
    for target in targets:
        assert target["kind"] in WORKLOADS
        assert "replicas" not in manifests.one(target["kind"], target["name"])["spec"]


@pytest.mark.parametrize("component", AUTOSCALING)
def test_no_autoscaler_leaves_a_role_with_one_replica(component: str) -> None:
    """All but Redis have two replicas; otherwise losing a replica would lose requests."""
    for scaler in combined("gpu", component).of_kind("HorizontalPodAutoscaler", "ScaledObject"):
        least = {"minReplicas", "minReplicaCount"} & scaler["spec"].keys()
        assert [scaler["spec"][name] for name in least] == [2], scaler["metadata"]["name"]


def test_all_documents_share_one_label() -> None:
    for component in (*OTHER_COMPONENTS, *AUTOSCALING):
        for document in combined("gpu", component).documents:
            assert document["metadata"]["labels"][PART_LABEL] == "draftloop"


def test_documented_cpu_drafters_may_run_on_any_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks = fenced(ROOT / "docs" / "operations.md", "yaml")
    (text,) = (block for block in blocks if "DRAFTLOOP_DRAFTER_DEVICE=cpu" in block)
    manifests = rendered(text)
    resources = manifests.container("drafter")["resources"]
    assert not [name for amounts in resources.values() for name in amounts if "gpu" in name]
    assert "nodeSelector" not in manifests.pod("drafter")
    read: Any = settings(manifests, "drafter", monkeypatch)
    assert (read.device, read.threads) == ("cpu", int(resources["limits"]["cpu"]))
    assert str(read.model) == "/weights/draft"
