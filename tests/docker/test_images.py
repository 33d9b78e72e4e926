"""What the images contain and what they do not."""

from __future__ import annotations

import pytest
import yaml

from draftloop.config import REPOSITORY
from tests.docker.engine import Engine
from tests.docker.images import TAG
from tests.docker.project import NAME, ROLES

MAX_SLIM_BYTES = 800_000_000


def run_python(engine: Engine, role: str, code: str) -> str:
    """The output of Python code in a role's image."""
    image = f"draftloop-{role}:{TAG}"
    command = ("docker", "run", "--rm", "--network", "none", "--read-only")
    return engine.run(*command, "--entrypoint", "python", image, "-c", code).strip()


@pytest.mark.parametrize("role", ROLES)
def test_images_run_without_root_and_without_installers(images: Engine, role: str) -> None:
    code = "import os, importlib.util as u; print(os.getuid(), u.find_spec('pip'))"
    assert run_python(images, role, code) == "10001 None"


@pytest.mark.parametrize("role", ROLES)
def test_every_role_has_its_health_check(images: Engine, role: str) -> None:
    check = images.inspect(f"draftloop-{role}:{TAG}")["Config"]["Healthcheck"]["Test"]
    assert "draftloop.rpc.health" in check[-1]


def test_orchestrator_image_has_no_torch(images: Engine) -> None:
    code = "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('transformers'))"
    assert run_python(images, "orchestrator", code) == "None None"
    assert images.inspect(f"draftloop-orchestrator:{TAG}")["Size"] < MAX_SLIM_BYTES


def test_weights_can_be_copied_into_the_image(images: Engine) -> None:
    """The loader pod of deploy/kubernetes sleeps, and `kubectl cp` needs tar in it."""
    code = "import shutil; print(all(map(shutil.which, ('sleep', 'tar'))))"
    assert run_python(images, "orchestrator", code) == "True"


def test_drafter_and_verifier_share_their_layers(images: Engine) -> None:
    layers = [
        images.inspect(f"draftloop-{role}:{TAG}")["RootFS"]["Layers"]
        for role in ("model", "drafter", "verifier")
    ]
    assert layers[0] == layers[1] == layers[2]


def test_images_contain_the_bundled_models_but_not_their_training(images: Engine) -> None:
    code = "import pathlib; print(sorted(p.name for p in pathlib.Path('models').iterdir()))"
    models = ["LICENSE-PSF.txt", "NOTICE", "drafter", "drafter-large", "verifier"]
    assert run_python(images, "verifier", code) == str(models)
    other_models = [model for model in models if not model.startswith("drafter")]
    assert run_python(images, "orchestrator", code) == str(other_models)


def gpu_project(engine: Engine, *arguments: str, **models: str) -> str:
    """Runs a Compose command on the GPU project, with the bundled pair as weights."""
    files = ("-f", "docker-compose.yml", "-f", "deploy/compose.gpu.yml")
    settings = {"TAG": TAG, "WEIGHTS": str(REPOSITORY / "models"), "HF_HUB_OFFLINE": "1"}
    command = (*engine.compose, "-p", f"{NAME}-gpu", *files, *arguments)
    return engine.run(*command, variables={**settings, **models})


def test_existing_weights_are_used(images: Engine) -> None:
    """Tests the part of compose.gpu.yml that needs neither a GPU nor a model hub."""
    pair = {"TARGET_MODEL": "verifier", "DRAFT_MODEL": "drafter"}
    run = ("run", "-T", "--rm", "weights")
    # Fetching needs no compiler, so the image without one can take the place of the one with it.
    images.run("docker", "tag", f"draftloop-verifier:{TAG}", f"draftloop-verifier:{TAG}-cuda")
    try:
        gpu_project(images, *run, **pair)
        with pytest.raises(AssertionError, match="no model in /weights/elsewhere"):
            gpu_project(images, *run, TARGET_MODEL="verifier", DRAFT_MODEL="elsewhere")
        with pytest.raises(AssertionError, match="an id on the model hub"):
            gpu_project(images, *run, TARGET_MODEL="verifier")
    finally:
        gpu_project(images, "down", "--volumes", **pair)


def test_compose_for_gpus_allows_compiling_and_running_kernels(images: Engine) -> None:
    """Triton compiles with a C compiler into a folder from which it executes the result."""
    pair = {"TARGET_MODEL": "verifier", "DRAFT_MODEL": "drafter"}
    services = yaml.safe_load(gpu_project(images, "config", **pair))["services"]
    for role in ("verifier", "drafter"):
        build, environment = services[role]["build"], services[role]["environment"]
        assert build["target"] == role and build["args"]["COMPILER"] == "1"
        folder = environment["TRITON_CACHE_DIR"]
        (mount,) = (m for m in services[role]["tmpfs"] if m.startswith(f"{folder}:"))
        images.run(
            "docker", "run", "--rm", "--network", "none", "--read-only", "--tmpfs", mount,
            "--entrypoint", "sh", f"draftloop-{role}:{TAG}",
            "-ec", f"cp /bin/true {folder}/made && {folder}/made",
        )  # fmt: skip
