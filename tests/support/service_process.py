"""Forked processes of the roles on fixed ports, which tests kill and restart."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.forked import Forked
from tests.support.ports import quiet_port

START_S = 240.0
STOP_S = 60.0


class ServiceProcess:
    """One role on one port, to be killed and restarted; its output goes to `log_file`."""

    def __init__(
        self, role: str, flags: Sequence[str], folder: Path, log_file: Path | None = None
    ) -> None:
        self.role = role
        self.address = f"127.0.0.1:{quiet_port()}"
        self.log_file = log_file or folder / "log"
        self.kills = 0
        self.ready_since = 0.0
        self._killed = False
        self._flags = [*flags, "--listen", self.address]
        self._address_file = folder / "address"
        self._process: Forked | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def pid(self) -> int:
        """Process id of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process exists, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether it has become warm since its last start, and was not killed since."""
        if self.alive and not self.ready_since and self._address_file.exists():
            self.ready_since = time.monotonic()
        return bool(self.ready_since) and self.alive and not self._killed

    def start(self) -> None:
        """Starts the process and returns at once."""
        if self._process is not None:
            self._process.wait()
        self._address_file.unlink(missing_ok=True)
        self.ready_since = 0.0
        self._killed = False
        flags = [*self._flags, "--address-file", str(self._address_file)]
        self._process = Forked(self.role, flags, self.log_file, os.environ)

    def wait_until_ready(self, seconds: float = START_S) -> None:
        """Fails the test, with the end of the log, if it is not ready in time or has ended."""
        deadline = time.monotonic() + seconds
        while not self.ready:
            assert self.alive and time.monotonic() < deadline, f"{self.role}: {self.log()[-2000:]}"
            time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, such as SIGKILL, SIGSTOP or SIGTERM, unless the process is dead."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Sends SIGKILL and waits until the process is gone."""
        self._killed = True  # set first, so that it is never seen as ready while it is being killed
        self.kills += 1
        self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def wait_for_exit(self, seconds: float = STOP_S) -> int | None:
        """Waits for the exit status; None if the process does not end in time."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def log(self) -> str:
        """All output of the process and its predecessors."""
        return self.log_file.read_text(errors="replace") if self.log_file.is_file() else ""
