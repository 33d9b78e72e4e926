"""A second deployment in its own namespace, as docs/operations.md sets up a new target model."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.repository import ROOT, fenced
from tests.support.documented import documented_commands
from tests.support.manifests import ROLES, Manifests, rendered, required

NEXT = "draftloop-next"
# The load of the old deployment, and of the new one, which is a fifth.
LOADS = {"draftloop": 25, NEXT: 5}
SLOTS = 10


@pytest.fixture(scope="module")
def second_deployment() -> Manifests:
    """The manifests that the page's kustomization builds."""
    blocks = fenced(ROOT / "docs" / "operations.md", "yaml")
    (text,) = (block for block in blocks if f"namespace: {NEXT}" in block)
    return rendered(text)


def queries(manifests: Manifests) -> dict[str, str]:
    """KEDA's queries to Prometheus, by role."""
    return {
        scaled["metadata"]["name"]: scaled["spec"]["triggers"][0]["metadata"]["query"]
        for scaled in manifests.of_kind("ScaledObject")
    }


def test_all_documents_are_in_the_new_namespace(second_deployment: Manifests) -> None:
    for document in second_deployment.documents:
        metadata = document["metadata"]
        of_its_own = document["kind"] == "Namespace"
        assert metadata["name" if of_its_own else "namespace"] == NEXT, metadata["name"]


def test_keda_queries_only_its_own_namespace(second_deployment: Manifests, tmp_path: Path) -> None:
    promtool = required("promtool")
    queried = queries(second_deployment)
    assert set(queried) == set(ROLES)
    sessions = 2 * LOADS[NEXT] / SLOTS
    expected = {"orchestrator": 2 * LOADS[NEXT], "drafter": sessions, "verifier": sessions}
    case = {
        "interval": "15s",
        "input_series": [*series("draftloop"), *series(NEXT)],
        "promql_expr_test": [
            {
                "expr": queried[role],
                "eval_time": "1m",
                "exp_samples": [{"labels": f'{{namespace="{NEXT}"}}', "value": value}],
            }
            for role, value in expected.items()
        ],
    }
    file = tmp_path / "queries.test.yml"
    file.write_text(yaml.safe_dump({"tests": [case]}), encoding="utf-8")
    run = subprocess.run(
        [promtool, "test", "rules", str(file)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


def series(namespace: str) -> list[dict[str, Any]]:
    """Series of two pods per role, with as many running as waiting."""
    load = LOADS[namespace]
    values = {
        f"draftloop_num_{what}_{state}": (load // 2, load - load // 2)
        for what in ("requests", "sessions")
        for state in ("running", "waiting")
    } | {"draftloop_max_sessions": (SLOTS, SLOTS)}
    return [
        {
            "series": f'{name}{{namespace="{namespace}", job="{role}", pod="{role}-{pod}"}}',
            "values": f"{value}x8",
        }
        for role in ROLES
        for name, pods in values.items()
        for pod, value in enumerate(pods)
    ]


def test_page_creates_the_secret_and_the_claim_that_pods_mount(
    second_deployment: Manifests,
) -> None:
    commands = [
        command.text
        for command in documented_commands()
        if command.words[:3] == ("kubectl", "-n", NEXT)
    ]
    volumes = [volume for role in ROLES for volume in second_deployment.pod(role)["volumes"]]
    secrets = {each["secret"]["secretName"] for each in volumes if "secret" in each}
    claims = {
        each["persistentVolumeClaim"]["claimName"]
        for each in volumes
        if "persistentVolumeClaim" in each
    }
    for name in secrets:
        assert any(re.search(f"create secret generic {name}\\b", text) for text in commands)
    for name in claims:
        assert any(re.search(f"apply -f \\S+/{name}.yaml", text) for text in commands)
    assert secrets and claims
