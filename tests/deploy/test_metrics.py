"""Autoscalers and docs/operations.md use metrics that a role exports."""

from __future__ import annotations

import functools
import importlib
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from draftloop.metrics import REGISTRY
from orchestrator.config import OrchestratorSettings
from tests.contract.repository import ROOT, modules
from tests.deploy import prometheus_rule
from tests.support.manifests import KUBERNETES, OVERLAYS, ROLES, combined

NAME = re.compile(r"\bdraftloop_[a-z_]+\b")
ADAPTER = KUBERNETES / "components" / "autoscaling" / "prometheus-adapter.yaml"


@functools.cache
def exported_metrics() -> frozenset[str]:
    """The names of all metrics, with `_total` for counters."""
    for module in modules():
        if module.file.name == "metrics.py" and module.package != "tests":
            importlib.import_module(module.name)
    families = [family for family in REGISTRY.collect() if family.name.startswith("draftloop_")]
    return frozenset(
        family.name + ("_total" if family.type == "counter" else "") for family in families
    )


def adapter_rules() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = yaml.safe_load(ADAPTER.read_text("utf-8"))["rules"]["custom"]
    return rules


def test_autoscalers_use_metrics_that_the_adapter_offers() -> None:
    used = {
        metric["pods"]["metric"]["name"]
        for scaler in combined("gpu", "autoscaling").of_kind("HorizontalPodAutoscaler")
        for metric in scaler["spec"]["metrics"]
        if metric["type"] == "Pods"
    }
    assert used == {rule["name"]["as"] for rule in adapter_rules()}


def test_adapter_queries_exported_metrics() -> None:
    for rule in adapter_rules():
        names = set(NAME.findall(rule["seriesQuery"] + rule["metricsQuery"]))
        assert names and names <= exported_metrics()


def test_keda_queries_metrics_of_the_role_that_it_scales() -> None:
    scaled = combined("gpu", "autoscaling-keda").of_kind("ScaledObject")
    assert {each["metadata"]["name"] for each in scaled} == set(ROLES)
    for each in scaled:
        for trigger in each["spec"]["triggers"]:
            query = trigger["metadata"]["query"]
            assert set(NAME.findall(query)) <= exported_metrics()
            jobs = set(re.findall(r'job="(\w+)"', query))
            assert jobs == {each["spec"]["scaleTargetRef"]["name"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_orchestrators_scale_up_before_they_refuse_requests(overlay: str) -> None:
    """With a target above one orchestrator's limit, no replica would ever be added."""
    environment = combined(overlay).environment("orchestrator")
    assert "DRAFTLOOP_ORCHESTRATOR_MAX_REQUESTS" not in environment
    most = OrchestratorSettings.model_fields["max_requests"].default
    for component in ("autoscaling", "autoscaling-keda"):
        manifests = combined(overlay, component)
        targets = [
            float(metric["pods"]["target"]["averageValue"])
            for scaler in manifests.of_kind("HorizontalPodAutoscaler")
            for metric in scaler["spec"]["metrics"]
            if metric["type"] == "Pods" and scaler["metadata"]["name"] == "orchestrator"
        ] + [
            float(trigger["metadata"]["threshold"])
            for scaled in manifests.of_kind("ScaledObject")
            for trigger in scaled["spec"]["triggers"]
            if scaled["metadata"]["name"] == "orchestrator"
        ]
        assert targets and max(targets) < most


def test_operations_page_names_exported_metrics() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert set(NAME.findall(page)) <= exported_metrics()


def test_request_end_counters_exist_from_the_start() -> None:
    """An alert that divides by both kinds then works before the first of either."""
    code = (
        "import orchestrator.metrics\n"
        "for family in (orchestrator.metrics.SUCCESSES, orchestrator.metrics.FAILURES):\n"
        "    for sample in family.collect()[0].samples:\n"
        "        if sample.name.endswith('_total'):\n"
        "            print(*sample.labels.values(), sample.value)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert result.stdout.splitlines() == [
        f"{label} 0.0"
        for label in (
            *("stop", "length", "abort"),
            *("invalid_input", "overloaded", "unauthenticated", "forbidden"),
            *("deadline_exceeded", "mismatch", "no_answer"),
            *("unavailable", "other", "internal"),
        )
    ], result.stderr


def test_operator_alerts_equal_the_prometheus_rules() -> None:
    """`python -m tests.deploy.prometheus_rule` rewrites them."""
    assert prometheus_rule.MANIFEST.read_text(encoding="utf-8") == prometheus_rule.manifest()
