"""deploy/compose.gpu.yml merged with docker-compose.yml, checked as files without an engine."""

from __future__ import annotations

from typing import Any

import yaml

from tests.contract.repository import ROOT


def services(name: str) -> dict[str, dict[str, Any]]:
    """The services of a Compose file, by name."""
    text = (ROOT / name).read_text(encoding="utf-8")
    composed: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    return composed


CPU, GPU = services("docker-compose.yml"), services("deploy/compose.gpu.yml")


def test_gpu_images_have_other_names_than_cpu_images() -> None:
    """`up` does not rebuild an existing image: with the same name it would run the CPU image."""
    built = {name: service["image"] for name, service in GPU.items() if "build" in service}
    assert set(built) == {"weights", "verifier", "drafter"}
    assert not set(built.values()) & {service["image"] for service in CPU.values()}
    for role in ("verifier", "drafter"):
        assert built[role] == f"{CPU[role]['image']}-cuda"


def test_weights_are_fetched_in_the_verifier_image() -> None:
    """Compose builds the image for whichever service comes first, so both must build it alike."""
    of_cpu, of_gpu = CPU["verifier"]["build"], GPU["verifier"]["build"]
    assert GPU["weights"]["image"] == GPU["verifier"]["image"]
    assert GPU["weights"]["build"] == {**of_cpu, "args": {**of_cpu["args"], **of_gpu["args"]}}
