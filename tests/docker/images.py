"""Builds the images, with this environment's torch if it is a CPU build."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

from draftloop.config import REPOSITORY
from tests.docker.engine import BUILD_TIMEOUT_S, Engine

TAG = "test"
TARGETS = ("orchestrator", "model", "drafter", "verifier")
INDEX_FOLDER = REPOSITORY / ".cache" / "torch-index"
# A fixed port, as the address is part of the key of the engine's layer cache.
INDEX_PORT = 18731


def build(engine: Engine) -> None:
    """Builds every target with the tests' tag."""
    with torch_index() as index:
        for target in TARGETS:
            engine.run(
                *("docker", "build", "--network", "host", "-f", "deploy/Dockerfile"),
                *("--build-arg", f"TORCH_INDEX={index}"),
                *("--target", target, "-t", f"draftloop-{target}:{TAG}", "."),
                timeout_s=BUILD_TIMEOUT_S,
            )


@contextlib.contextmanager
def torch_index() -> Iterator[str]:
    """The address of a package index with this environment's torch; empty if it has CUDA."""
    torch_version = version("torch")
    if "+cpu" not in torch_version:
        yield ""
        return
    _fetch(f"torch=={torch_version}", INDEX_FOLDER / "torch")
    handler = functools.partial(_Quiet, directory=str(INDEX_FOLDER))
    with ThreadingHTTPServer(("127.0.0.1", INDEX_PORT), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{INDEX_PORT}/"
        server.shutdown()


def _fetch(requirement: str, folder: Path) -> None:
    """Downloads the wheel once, from pip's usual index on this machine."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    result = subprocess.run(
        [*command, "-d", str(folder), requirement], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass
