"""Metrics are documented, and dashboards and alerts name metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from draftloop.metrics import REGISTRY
from draftloop.runtime.cost_measurement import CONTEXT, LONG_CONTEXTS
from tests.contract import metrics_page
from tests.contract.repository import LIBRARIES, ROOT, SERVICES, modules

RULES = ROOT / "deploy" / "prometheus"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
NAME = re.compile(r"\bdraftloop_\w+")
DECLARATION = re.compile(r"registry=REGISTRY|\bLive\(")
FORBIDDEN_LABELS = {"request_id", "session_id", "tenant", "namespace", "address", "peer", "user"}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool, a part of Prometheus, is not installed"
)


def known_series() -> set[str]:
    return {name for metric in metrics_page.every_metric() for name in metric.series()}


def panels(dashboard: Path) -> list[dict[str, Any]]:
    return [
        panel
        for panel in json.loads(dashboard.read_text(encoding="utf-8"))["panels"]
        if panel["type"] != "row"
    ]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((RULES / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str]]:
    """Every query of alerts and dashboards, with its title."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for dashboard in DASHBOARDS:
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield panel["title"], target["expr"]


def test_dashboards_and_alerts_name_metrics_that_exist() -> None:
    known = known_series()
    mentions = [(place, name) for place, query in queries() for name in NAME.findall(query)]
    assert len(mentions) > 50
    assert not [pair for pair in mentions if pair[1] not in known]


def test_metrics_page_covers_all_modules_that_declare_metrics() -> None:
    product = [module for module in modules() if module.package in (*LIBRARIES, *SERVICES)]
    declaring = {module.name for module in product if DECLARATION.search(module.text)}
    assert declaring == set(metrics_page.MODULES.values())


def test_metrics_page_names_existing_metrics() -> None:
    page = metrics_page.PAGE.text
    known = known_series() | {metric.name for metric in metrics_page.every_metric()}
    assert set(NAME.findall(page)) <= known


def test_metrics_have_descriptions_and_bounded_labels() -> None:
    for metric in metrics_page.every_metric():
        assert metric.name.startswith("draftloop_"), metric
        assert metric.meaning.endswith(".") and "|" not in metric.meaning, metric
        assert not FORBIDDEN_LABELS & set(metric.labels), metric


def test_dashboard_panels_are_complete_and_distinct() -> None:
    assert DASHBOARDS
    for dashboard in DASHBOARDS:
        visible = panels(dashboard)
        assert len({panel["id"] for panel in visible}) == len(visible)
        assert len({panel["title"] for panel in visible}) == len(visible)
        for panel in visible:
            assert panel["description"] and panel["targets"], panel["title"]
            assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def promtool(*arguments: str, stdin: str = "") -> None:
    command = ["promtool", *arguments]
    run = subprocess.run(command, cwd=RULES, input=stdin, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@needs_promtool
def test_metrics_follow_prometheus_conventions() -> None:
    """Names, units and types, by Prometheus' own linter."""
    metrics_page.every_metric()  # imports all modules that declare metrics
    promtool("check", "metrics", stdin=generate_latest(REGISTRY).decode())


@needs_promtool
def test_scrape_configuration_is_valid() -> None:
    promtool("check", "config", "--lint=all", "--lint-fatal", "prometheus.yml")


def test_every_alert_fires_in_a_test_case() -> None:
    """A rule that fires in no test case might never fire."""
    cases = yaml.safe_load((RULES / "alerts.test.yml").read_text(encoding="utf-8"))["tests"]
    fired = {
        check["alertname"]
        for case in cases
        for check in case["alert_rule_test"]
        if check.get("exp_alerts")
    }
    assert fired == {rule["alert"] for rule in rules()}


@needs_promtool
def test_alerts_are_valid_and_fire_as_expected() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", "alerts.yml")
    promtool("test", "rules", "alerts.test.yml")


@needs_promtool
def test_cost_panel_does_not_mix_context_lengths(tmp_path: Path) -> None:
    """Long contexts are measured with few token counts and would lie above the line."""
    (panel,) = (each for each in panels(DASHBOARDS[0]) if each["title"] == "Cost of a forward")
    (target,) = panel["targets"]
    costs = {(CONTEXT, 8): "0.125", (CONTEXT, 16): "0.1875", (max(LONG_CONTEXTS), 8): "0.25"}
    case = {
        "input_series": [
            {
                "series": "draftloop_forward_cost_seconds"
                f'{{job="drafter", batch="1", context="{context}", tokens="{tokens}"}}',
                "values": cost,
            }
            for (context, tokens), cost in costs.items()
        ],
        "promql_expr_test": [
            {
                "expr": target["expr"],
                "eval_time": "0s",
                "exp_samples": [
                    {"labels": f'{{job="drafter", tokens="{tokens}"}}', "value": cost}
                    for tokens, cost in ((8, 0.125), (16, 0.1875))
                ],
            }
        ],
    }
    file = tmp_path / "cost.test.yml"
    file.write_text(yaml.safe_dump({"tests": [case]}))
    promtool("test", "rules", str(file))


@needs_promtool
def test_dashboard_queries_are_valid(tmp_path: Path) -> None:
    """The queries are checked as rules, as promtool does not parse single queries."""
    expressions = [query.replace("$__rate_interval", "1m") for _, query in queries()]
    rules = [{"record": f"draftloop:{i}", "expr": text} for i, text in enumerate(expressions)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", str(file))
