"""The alerts of `deploy/prometheus` as a resource of the Prometheus operator.

`python -m tests.deploy.prometheus_rule` rewrites the manifest; a test checks that it is fresh.
"""

from __future__ import annotations

import sys

import yaml

from tests.contract.repository import ROOT
from tests.support.manifests import KUBERNETES

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
MANIFEST = KUBERNETES / "components" / "monitoring" / "alerts.yaml"
HEAD = """\
# The rules of deploy/prometheus/alerts.yml: change them there, and then run
# python -m tests.deploy.prometheus_rule
"""


def manifest() -> str:
    """The whole manifest, from the current rules."""
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "draftloop",
            "namespace": "draftloop",
            "labels": {"app.kubernetes.io/part-of": "draftloop"},
        },
        "spec": yaml.safe_load(ALERTS.read_text(encoding="utf-8")),
    }
    return HEAD + yaml.safe_dump(resource, sort_keys=False, width=100)


def main() -> None:
    """Rewrites the manifest."""
    MANIFEST.write_text(manifest(), encoding="utf-8")
    sys.stdout.write(f"wrote {MANIFEST.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
