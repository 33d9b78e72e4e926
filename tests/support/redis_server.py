"""Real Redis servers that tests start, kill and restart."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest
import redis

from tests.support.ports import quiet_port

START_S = 10.0


def require_redis_server() -> str:
    """Path of redis-server; skips the test if it is not installed."""
    path = shutil.which("redis-server")
    if path is None:
        pytest.skip("redis-server is not installed (apt install redis-server)")
    return path


class RedisServer:
    """One server process on loopback, without persistence."""

    def __init__(
        self, folder: Path, *options: str, sentinel: bool = False, ready: Sequence[str] = ()
    ) -> None:
        self._program = require_redis_server()
        self.port = quiet_port()
        self._folder = folder / f"redis-{self.port}"
        self._folder.mkdir(parents=True)
        self._options = options
        self._sentinel = sentinel
        self._ready = ready  # user and password for the probe
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL without credentials."""
        return f"redis://127.0.0.1:{self.port}"

    def client(self, **options: object) -> redis.Redis:
        """A client for the test itself, without short timeouts."""
        return redis.Redis(host="127.0.0.1", port=self.port, **options)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Starts the process and waits until its port answers."""
        config = self._folder / "redis.conf"
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {self._folder}"]
        if not self._sentinel:
            lines += ["save ''", "appendonly no"]
        config.write_text("\n".join([*lines, *self._options]) + "\n", encoding="utf-8")
        arguments = [self._program, str(config), *(["--sentinel"] if self._sentinel else [])]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(arguments, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._listening())) == 0:
                    return
            time.sleep(0.01)
        raise RuntimeError(f"redis-server did not start: {(self._folder / 'log').read_text()}")

    def _listening(self) -> int:
        for option in self._options:
            if option.startswith("tls-port "):
                return int(option.split()[1])
        return self.port

    def kill(self) -> None:
        """Sends SIGKILL; may be called repeatedly."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Sends SIGSTOP: the port still accepts connections, but nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Sends SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
