"""Fixtures of `make test-docker`: the images and docker-compose.yml on a real engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.engine import Engine, NoEngine
from tests.docker.generation import MAX_TOKENS, Running
from tests.docker.images import build
from tests.docker.project import Project
from tests.support.opt_in import only_on_request, tests_below

WANTED = "TEST_DOCKER"
TIMEOUT_S = 3600  # the first test builds the images


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips these tests unless they are requested: building the images takes minutes."""
    chosen = tests_below(Path(__file__).parent, items)
    reason = "needs Docker: run `make test-docker`"
    only_on_request(chosen, variable=WANTED, timeout_s=TIMEOUT_S, reason=reason)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A Docker engine; without one all tests here are skipped, with the reason."""
    try:
        container_engine = Engine.find()
    except NoEngine as reason:
        pytest.skip(str(reason))
    yield container_engine
    container_engine.close()


@pytest.fixture(scope="session")
def images(engine: Engine) -> Engine:
    """The engine, with the images of this working tree."""
    build(engine)
    return engine


@pytest.fixture(scope="session")
def project(images: Engine) -> Iterator[Project]:
    """The stack of docker-compose.yml, healthy. A test that breaks a part has to repair it."""
    project = Project(images)
    project.down()  # what an interrupted run left
    try:
        project.up()
        yield project
    finally:
        project.down()


@pytest.fixture(scope="session")
def address(project: Project) -> str:
    """The published address of the orchestrator's gRPC port."""
    return f"127.0.0.1:{project.grpc_port}"


@pytest.fixture(scope="session")
def expected(address: str) -> list[int]:
    """The output of plain decoding without faults."""
    with Running(address, "autoregressive") as running:
        tokens = running.wait_for_tokens()
    assert len(tokens) == MAX_TOKENS
    return tokens
