"""The last tests of the folder: graceful stop, and complete removal."""

from __future__ import annotations

import threading

from tests.docker.generation import Running
from tests.docker.project import NAME, SERVICES, Project


def test_stop_waits_for_running_requests(
    project: Project, address: str, expected: list[int]
) -> None:
    with Running(address) as running:
        running.wait_until_under_way()
        stopping = threading.Thread(target=project.compose, args=("stop",))
        stopping.start()
        assert running.wait_for_tokens() == expected
        stopping.join()
    for service in SERVICES:
        for container in project.containers(service):
            state = project.engine.inspect(container)["State"]
            assert (service, state["Running"], state["ExitCode"]) == (service, False, 0)


def test_down_removes_everything(project: Project) -> None:
    project.down()
    label = f"label=com.docker.compose.project={NAME}"
    for kind in (("ps", "-a"), ("network", "ls"), ("volume", "ls")):
        assert project.engine.run("docker", *kind, "-q", "--filter", label) == ""
