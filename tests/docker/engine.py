"""A Docker engine for the tests: the one that answers, or one started by a local tool."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from draftloop.config import REPOSITORY

# Starts an engine and makes substitutes for the base images where no image registry is reachable.
STARTER = Path(os.environ.get("LOCAL_DOCKER", REPOSITORY.parent / "shared/tools/local-docker"))
BASE_IMAGES = ("python:3.11-slim", "redis:7")
COMMAND_TIMEOUT_S = 600.0
BUILD_TIMEOUT_S = 2400.0


class NoEngine(Exception):
    """No engine is available, for this reason."""


class Engine:
    """`docker` and Compose with the environment of one engine."""

    def __init__(self, environment: dict[str, str]) -> None:
        """Raises NoEngine if Compose is missing."""
        self._environment = {**os.environ, **environment}
        self.compose = _compose(self._environment)
        self._started: Path | None = None

    @classmethod
    def find(cls) -> Self:
        """The engine that answers, or a private one. Raises NoEngine with the reason."""
        if shutil.which("docker") and _succeeds(("docker", "info"), {**os.environ}):
            return cls({})
        if not STARTER.exists():
            raise NoEngine("no Docker engine answers `docker info`")
        return cls._start(STARTER)

    @classmethod
    def _start(cls, starter: Path) -> Self:
        if os.geteuid() != 0:
            raise NoEngine("no Docker engine answers, and starting one takes root")
        result = subprocess.run([starter, "up"], capture_output=True, text=True, check=False)
        if result.returncode:
            raise NoEngine(f"no Docker engine answers, and none can be started: {result.stderr}")
        line = result.stdout.strip().splitlines()[-1].removeprefix("export ")
        engine = cls(dict(word.split("=", 1) for word in shlex.split(line)))
        engine._started = starter
        engine._make_base_images(starter)
        return engine

    def _make_base_images(self, starter: Path) -> None:
        """Makes the base images once: new ones would differ and cause all layers to be rebuilt."""
        commands = [("docker", "image", "inspect", image) for image in BASE_IMAGES]
        if not all(_succeeds(command, self._environment) for command in commands):
            result = subprocess.run(
                [starter, "images"], capture_output=True, text=True, check=False
            )
            if result.returncode:
                self.close()
                raise NoEngine(f"the base images cannot be made: {result.stderr[-500:]}")
        self._forget_constraints(BASE_IMAGES[0])

    def _forget_constraints(self, image: str) -> None:
        """Removes from the image's pip.conf the `constraint` line, valid on this machine only."""
        asks = ("docker", "run", "--rm", image, "grep", "-q", "^constraint", "/etc/pip.conf")
        if _succeeds(asks, self._environment):
            subprocess.run(
                ("docker", "build", "--network", "host", "-t", image, "-"),
                input=f"FROM {image}\nRUN sed -i /^constraint/d /etc/pip.conf\n",
                env=self._environment, capture_output=True, text=True, check=True,
            )  # fmt: skip

    def close(self) -> None:
        """Stops the engine, if it was started here."""
        if self._started is not None:
            subprocess.run([self._started, "down"], capture_output=True, check=False)

    def run(
        self,
        *command: str,
        timeout_s: float = COMMAND_TIMEOUT_S,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """The command's standard output. Raises AssertionError with the output if it fails."""
        result = subprocess.run(
            command,
            env={**self._environment, **(variables or {})},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert result.returncode == 0, (
            f"{shlex.join(command)}: {(result.stdout + result.stderr)[-2000:]}"
        )
        return result.stdout

    def inspect(self, name: str) -> dict[str, Any]:
        """The engine's description of a container, an image or a network."""
        details: dict[str, Any] = json.loads(self.run("docker", "inspect", name))[0]
        return details


def _compose(environment: dict[str, str]) -> tuple[str, ...]:
    """The command that runs Compose here."""
    for command in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(command[0]) and _succeeds((*command, "version"), environment):
            return command
    raise NoEngine("neither `docker compose` nor `docker-compose` is installed")


def _succeeds(command: tuple[str, ...], environment: dict[str, str]) -> bool:
    result = subprocess.run(
        command, env=environment, capture_output=True, check=False, timeout=COMMAND_TIMEOUT_S
    )
    return result.returncode == 0
