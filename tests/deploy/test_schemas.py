"""Every overlay builds with its components, and all their kinds and fields exist."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.repository import ROOT, fenced
from tests.support.kubernetes_schemas import NEWEST, OLDEST, complaint
from tests.support.manifests import Manifests, combinations, combined, loader, rendered, required


def every_document() -> list[dict[str, Any]]:
    """The distinct documents of all combinations, and the pod that loads the weights."""
    documents = {
        json.dumps(document, sort_keys=True): document
        for overlay, components in combinations()
        for document in combined(overlay, *components).documents
    }
    return [*documents.values(), loader()]


def title(document: dict[str, Any]) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_documents_match_strict_schemas(version: str) -> None:
    problems = {title(document): complaint(document, version) for document in every_document()}
    assert len(problems) > 30
    assert not {name: problem for name, problem in problems.items() if problem}


def test_names_are_unique_within_a_combination() -> None:
    for overlay, components in combinations():
        titles = [title(document) for document in combined(overlay, *components).documents]
        assert len(titles) == len(set(titles))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("kind", "Deploymint"), "Couldn't find schema"),
        (("spec.replicaz", 2), "replicaz"),
        (("spec.template.spec.containers.0.readinessProbe.grpc.port", "grpc"), "'grpc'"),
        (("spec.template.spec.containers.0.lifecycle.preStop.slep", {}), "slep"),
    ],
)
def test_schema_check_detects_errors(change: tuple[str, Any], expected: str) -> None:
    """Guards the check: a validator that accepts everything would pass good manifests too."""
    document: Any = copy.deepcopy(combined("cpu-demo").one("Deployment", "orchestrator"))
    path, value = change
    *folders, last = path.split(".")
    place = document
    for step in folders:
        place = place[int(step)] if step.isdecimal() else place[step]
    place[last] = value
    assert expected in complaint(document, NEWEST)


def test_custom_resource_check_detects_errors() -> None:
    document = copy.deepcopy(combined("gpu", "monitoring").one("PodMonitor", "verifier"))
    document["spec"]["podMetricsEndpoints"][0]["intervall"] = "15s"
    assert "intervall" in complaint(document, NEWEST)


def test_documented_kustomization_builds() -> None:
    blocks = fenced(ROOT / "docs" / "operations.md", "yaml")
    kustomizations = [block for block in blocks if "kind: Kustomization" in block]
    assert kustomizations
    for text in kustomizations:
        manifests = rendered(text)
        assert not [
            problem for document in manifests.documents if (problem := complaint(document, NEWEST))
        ]


def test_alerts_are_valid_prometheus_rules(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(yaml.safe_dump(alerts(combined("gpu", "monitoring"))), encoding="utf-8")
    run = subprocess.run(
        [required("promtool"), "check", "rules", str(rules)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def alerts(manifests: Manifests) -> Any:
    (rule,) = manifests.of_kind("PrometheusRule")
    return rule["spec"]
