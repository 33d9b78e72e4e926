"""Kubernetes manifests as `kubectl kustomize` renders them, with accessors for tests."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.repository import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
ROLES = ("orchestrator", "drafter", "verifier")
WORKLOADS = ("Deployment", "StatefulSet")
OVERLAYS = ("cpu-demo", "gpu")
AUTOSCALING = ("autoscaling", "autoscaling-cpu", "autoscaling-keda")  # at most one of them
OTHER_COMPONENTS = ("monitoring", "network-policies", "api-keys", "http-route", "mutual-tls")
NAME_LABEL = "app.kubernetes.io/name"
PART_LABEL = "app.kubernetes.io/part-of"

Document = dict[str, Any]


@dataclass(frozen=True)
class Manifests:
    """All documents that one `kubectl apply -k` would send."""

    documents: tuple[Document, ...]

    def of_kind(self, *kinds: str) -> list[Document]:
        return [document for document in self.documents if document["kind"] in kinds]

    def one(self, kind: str, name: str) -> Document:
        """The only document of this kind and name."""
        (match,) = [
            document for document in self.of_kind(kind) if document["metadata"]["name"] == name
        ]
        return match

    @property
    def workloads(self) -> dict[str, Document]:
        """Deployments and StatefulSets by name."""
        return {document["metadata"]["name"]: document for document in self.of_kind(*WORKLOADS)}

    def pod(self, name: str) -> Document:
        """The pod template's spec of a workload."""
        spec: Document = self.workloads[name]["spec"]["template"]["spec"]
        return spec

    def pods(self) -> list[Document]:
        """The specs of all workloads' pods."""
        return [self.pod(name) for name in self.workloads]

    def container(self, name: str) -> Document:
        """The only container of a workload."""
        (container,) = self.pod(name)["containers"]
        match: Document = container
        return match

    def ports(self, name: str) -> dict[str, int]:
        """Ports of a workload's container, by name."""
        return {port["name"]: port["containerPort"] for port in self.container(name)["ports"]}

    def environment(self, name: str) -> dict[str, str]:
        """Environment of the process; CPU limits are whole CPUs, as the kubelet rounds them."""
        container = self.container(name)
        values: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            values |= self.one("ConfigMap", source["configMapRef"]["name"])["data"]
        for variable in container.get("env", ()):
            if "value" in variable:
                values[variable["name"]] = variable["value"]
            else:
                assert variable["valueFrom"]["resourceFieldRef"]["resource"] == "limits.cpu"
                values[variable["name"]] = str(int(container["resources"]["limits"]["cpu"]))
        return values

    def selected_by(self, selector: dict[str, str]) -> list[str]:
        """Names of the workloads whose pods have all of these labels."""
        return [
            name
            for name, workload in self.workloads.items()
            if selector.items() <= workload["spec"]["template"]["metadata"]["labels"].items()
        ]


def required(program: str) -> str:
    """The program's path; skips the test if it is not installed."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


def rendered(kustomization: str) -> Manifests:
    """The manifests of a kustomization as if it were in `deploy/kubernetes/overlays/NAME`.

    Its relative paths are rewritten to refer to the repository.
    """
    kubectl = required("kubectl")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder).resolve()
        text = kustomization.replace("../..", os.path.relpath(KUBERNETES, directory))
        (directory / "kustomization.yaml").write_text(text, encoding="utf-8")
        run = subprocess.run(
            [kubectl, "kustomize", str(directory)], capture_output=True, text=True, timeout=120
        )
    assert run.returncode == 0, run.stderr
    return Manifests(tuple(yaml.load_all(run.stdout, Loader=yaml.CSafeLoader)))


@functools.cache
def combined(overlay: str, *components: str) -> Manifests:
    """An overlay with components on top, in the form that docs/operations.md shows to users."""
    lines = ["resources:", f"  - ../../overlays/{overlay}"]
    if components:
        lines += ["components:", *(f"  - ../../components/{name}" for name in components)]
    return rendered("\n".join(lines) + "\n")


def loader() -> Document:
    """The pod that fills the volume of weights, as `kubectl apply -f` would send it."""
    text = (KUBERNETES / "overlays" / "gpu" / "loader.yaml").read_text(encoding="utf-8")
    document: Document = yaml.safe_load(text)
    return document


def combinations() -> Iterator[tuple[str, Sequence[str]]]:
    """Every overlay with every autoscaling component or none, and with other components.

    Of the others, it is combined with none, each by itself, and all.
    """
    extras = ((), *((name,) for name in OTHER_COMPONENTS), OTHER_COMPONENTS)
    for overlay in OVERLAYS:
        for scaling in ((), *((name,) for name in AUTOSCALING)):
            for extra in extras:
                yield overlay, (*scaling, *extra)
