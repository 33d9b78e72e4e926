"""The network policies allow the calls that the roles make, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from tests.contract.repository import ROOT, fenced
from tests.deploy.test_manifests import service_calls
from tests.support.kubernetes_schemas import NEWEST, complaint
from tests.support.manifests import NAME_LABEL, PART_LABEL, ROLES, Manifests, combined, rendered

Edge = tuple[str, str, int]
PAGE = ROOT / "docs" / "operations.md"
METRICS_PAGE = ROOT / "docs" / "metrics.md"
METRICS_BEHIND_TLS = ("orchestrator", 9464)  # nothing listens there unless PAGE is followed
CLIENT = {"draftloop-client": "true"}
PROMETHEUS = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
    "podSelector": {"matchLabels": {NAME_LABEL: "prometheus"}},
}


def manifests() -> Manifests:
    return combined("cpu-demo", "network-policies", "monitoring")


def rules(direction: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Workload and rule for every rule of one direction."""
    for policy in manifests().of_kind("NetworkPolicy"):
        spec = policy["spec"]
        assert spec.get("ingress") is None or "Ingress" in spec["policyTypes"]
        assert spec.get("egress") is None or "Egress" in spec["policyTypes"]
        for rule in spec.get(direction, ()):
            for name in manifests().selected_by(spec["podSelector"]["matchLabels"]):
                yield name, rule


def peers(rule: dict[str, Any], direction: str) -> Iterator[tuple[dict[str, Any], int]]:
    """Each peer with each port; a rule without one of them would allow everything."""
    sides = rule["from" if direction == "ingress" else "to"]
    assert sides and rule["ports"]
    for side in sides:
        for port in rule["ports"]:
            yield side, port["port"]


def edges_between_roles(direction: str) -> set[Edge]:
    """Caller, callee and port of every allowed call between roles."""
    edges = set()
    for name, rule in rules(direction):
        for side, port in peers(rule, direction):
            labels = side.get("podSelector", {}).get("matchLabels", {})
            if "namespaceSelector" in side or NAME_LABEL not in labels:
                continue
            for peer in manifests().selected_by(labels):
                edges.add((peer, name, port) if direction == "ingress" else (name, peer, port))
    return edges


def from_outside() -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Peers that are not roles, by workload and port."""
    sides: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for name, rule in rules("ingress"):
        for side, port in peers(rule, "ingress"):
            labels = side.get("podSelector", {}).get("matchLabels", {})
            if "namespaceSelector" in side or NAME_LABEL not in labels:
                sides.setdefault((name, port), []).append(side)
    return sides


def test_everything_is_denied_by_default() -> None:
    policy = manifests().one("NetworkPolicy", "default-deny")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert not {"ingress", "egress"} & set(policy)
    selected = manifests().selected_by(policy["podSelector"]["matchLabels"])
    assert sorted(selected) == sorted(manifests().workloads)


def test_allowed_calls_are_those_in_the_settings() -> None:
    expected = set(service_calls(manifests()))
    assert edges_between_roles("ingress") == expected
    assert edges_between_roles("egress") == expected


def test_clients_reach_only_the_public_ports() -> None:
    ports = manifests().ports("orchestrator")
    reached = {
        place
        for place, sides in from_outside().items()
        if any(CLIENT in (each.get("matchLabels") for each in side.values()) for side in sides)
    }
    assert reached == {("orchestrator", ports["grpc"]), ("orchestrator", ports["http"])}


def scraped_ports(manifests: Manifests) -> set[tuple[str, int]]:
    """The workloads and ports that the monitors name."""
    scraped = set()
    for monitor in manifests.of_kind("ServiceMonitor", "PodMonitor"):
        spec = monitor["spec"]
        (name,) = manifests.selected_by(spec["selector"]["matchLabels"])
        for endpoint in spec.get("endpoints") or spec["podMetricsEndpoints"]:
            port = endpoint.get("port") or endpoint["targetPort"]
            scraped.add((name, manifests.ports(name)[port]))
    return scraped


def ports_allowed_to_prometheus() -> set[tuple[str, int]]:
    return {place for place, sides in from_outside().items() if PROMETHEUS in sides}


def test_prometheus_reaches_the_scraped_ports() -> None:
    """The ports of the monitors, as numbers in the policies."""
    scraped = scraped_ports(manifests())
    assert ports_allowed_to_prometheus() == {*scraped, METRICS_BEHIND_TLS}
    assert {name for name, _ in scraped} == set(ROLES)


def test_prometheus_reaches_the_metrics_of_an_orchestrator_with_tls() -> None:
    """With the page's patch, the port that listens is scraped, and the policies allow it."""
    (text,) = (block for block in fenced(PAGE, "yaml") if "METRICS_LISTEN" in block)
    patched = rendered(text)
    name, port = METRICS_BEHIND_TLS
    listen = patched.environment(name)["DRAFTLOOP_ORCHESTRATOR_METRICS_LISTEN"]
    assert listen == f"0.0.0.0:{port}"
    assert METRICS_BEHIND_TLS in scraped_ports(patched) <= ports_allowed_to_prometheus()
    policies = manifests().of_kind("NetworkPolicy")
    assert patched.of_kind("NetworkPolicy") == policies


def test_documented_tracing_policy_allows_only_the_traces_of_every_role() -> None:
    (text,) = (block for block in fenced(PAGE, "yaml") if "kind: NetworkPolicy" in block)
    policy = yaml.safe_load(text)
    assert not complaint(policy, NEWEST)
    spec = policy["spec"]
    (roles,) = spec["podSelector"]["matchExpressions"]
    assert roles == {"key": NAME_LABEL, "operator": "In", "values": list(ROLES)}
    assert spec["policyTypes"] == ["Egress"]
    ((side, port),) = (peer for rule in spec["egress"] for peer in peers(rule, "egress"))
    assert set(side) == {"namespaceSelector", "podSelector"}
    assert f"--trace-endpoint http://127.0.0.1:{port} " in METRICS_PAGE.read_text(encoding="utf-8")


def test_no_other_ingress_is_allowed() -> None:
    allowed = [PROMETHEUS, *({selector: {"matchLabels": CLIENT}} for selector in SELECTORS)]
    assert not [
        (place, side)
        for place, sides in from_outside().items()
        for side in sides
        if side not in allowed
    ]


SELECTORS = ("podSelector", "namespaceSelector")


def test_only_dns_is_allowed_outside() -> None:
    outside = [
        (name, side, port)
        for name, rule in rules("egress")
        for side, port in peers(rule, "egress")
        if "namespaceSelector" in side or "podSelector" not in side
    ]
    assert {port for _, _, port in outside} == {53}
    assert {name for name, _, _ in outside} == set(manifests().workloads)


def test_policies_select_only_draftloop_pods() -> None:
    for policy in manifests().of_kind("NetworkPolicy"):
        labels = policy["spec"]["podSelector"]["matchLabels"]
        assert labels in ({PART_LABEL: "draftloop"}, {NAME_LABEL: labels.get(NAME_LABEL)})
