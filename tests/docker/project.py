"""A Compose project of docker-compose.yml: start, inspect, break, stop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from tests.docker.engine import Engine
from tests.docker.images import TAG
from tests.support.ports import quiet_port
from tests.support.waiting import until

NAME = "draftloop-test"
HEALTHY_S = 600.0
ROLES = ("orchestrator", "drafter", "verifier")
SERVICES = ("redis", *ROLES)


@dataclass
class Project:
    """The stack on free ports, in float32, so that outputs can be compared token for token."""

    engine: Engine
    grpc_port: int = field(default_factory=quiet_port)
    http_port: int = field(default_factory=quiet_port)

    def compose(self, *arguments: str) -> str:
        """Runs one Compose command on this project."""
        settings = {
            "GRPC_PORT": str(self.grpc_port),
            "HTTP_PORT": str(self.http_port),
            "TAG": TAG,
            "DTYPE": "float32",
        }
        command = (*self.engine.compose, "-p", NAME, *arguments)
        return self.engine.run(*command, variables=settings)

    def up(self, **replicas: int) -> None:
        """Starts what is not running; returns when everything is healthy."""
        scales = [
            word for role, count in replicas.items() for word in ("--scale", f"{role}={count}")
        ]
        self.compose("up", "-d", "--no-build", "--no-recreate", *scales)
        for service in SERVICES:
            for container in self.containers(service):
                self.wait_until_healthy(container)

    def down(self) -> None:
        """Removes containers, networks and volumes."""
        self.compose("down", "--volumes", "--timeout", "40")

    def containers(self, service: str) -> list[str]:
        """Ids of the service's containers, the oldest first."""
        label = f"label=com.docker.compose.service={service}"
        project = f"label=com.docker.compose.project={NAME}"
        listed = self.engine.run("docker", "ps", "-aq", "--filter", label, "--filter", project)
        return listed.split()[::-1]

    def network(self, name: str) -> str:
        """Full name of one of the project's networks."""
        return f"{NAME}_{name}"

    def crash(self, container: str) -> None:
        """Kills everything in the container but its init, with SIGKILL.

        After a `docker kill` the engine would regard the stop as intended and not restart the
        container.
        """
        self.engine.run("docker", "exec", "-d", container, "sh", "-c", "kill -9 -1")

    def starts(self, container: str) -> int:
        """How often the engine has restarted the container."""
        return int(self.engine.inspect(container)["RestartCount"])

    def wait_until_healthy(self, container: str, after_starts: int = 0) -> None:
        """Waits for at least `after_starts` restarts, and then for the container's health check."""
        deadline = time.monotonic() + HEALTHY_S
        while time.monotonic() < deadline:
            state = self.engine.inspect(container)
            if (
                state["RestartCount"] >= after_starts
                and state["State"]["Health"]["Status"] == "healthy"
            ):
                return
            time.sleep(0.5)
        raise AssertionError(f"not healthy: {self.logs()}")

    def wait_until_known(self, role: str, replicas: int) -> None:
        """Waits until the orchestrator has this number of ready replicas of the role."""
        line = f'draftloop_replicas{{role="{role}",state="ready"}} {replicas:.1f}'
        url = f"http://127.0.0.1:{self.http_port}/metrics"
        until(lambda: line in httpx.get(url).text.splitlines(), HEALTHY_S)

    def logs(self, service: str = "") -> str:
        """The last log lines of the service's containers, or of all services."""
        return self.compose("logs", "--no-color", "--tail", "50", *([service] if service else []))

    def disconnect(self, container: str, networks: Sequence[str]) -> None:
        """Disconnects the container from these networks."""
        for network in networks:
            self.engine.run("docker", "network", "disconnect", self.network(network), container)

    def connect(self, container: str, service: str, networks: Sequence[str]) -> None:
        """Reconnects the container under the name of its service."""
        for network in networks:
            name = self.network(network)
            self.engine.run("docker", "network", "connect", "--alias", service, name, container)
