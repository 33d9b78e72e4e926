"""One role in a process of its own."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

from draftloop.errors import StartupFailure

POLL_S = 0.05
STOP_GRACE_S = 15.0
MODULES = {
    "verifier": "verifier_service",
    "drafter": "drafter_service",
    "orchestrator": "orchestrator",
}


@functools.cache
def lifeline() -> int:
    """A file to read from that ends when this process does, SIGKILL included."""
    reading, _writing = os.pipe()  # nobody writes; children do not inherit that end
    return reading


class Running(Protocol):
    """What a launcher asks of a process: the part of `subprocess.Popen`."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int, /) -> None: ...


class RoleProcess:
    """One role's process, its log file and, once it is ready, its address."""

    def __init__(
        self, role: str, flags: list[str], folder: Path, secrets: dict[str, str] | None = None
    ) -> None:
        self.role = role
        self.environment = {**os.environ, **(secrets or {})}  # flags would show in `ps`
        self.flags = flags
        self.log_file = folder / f"{role}.log"
        self._address_file = folder / f"{role}.address"
        self.address = ""
        self.process: Running | None = None

    def start(self) -> None:
        """Starts the process; its output goes to the log file."""
        if self.process is not None:
            self.process.wait()  # reaped before its successor starts
        self._address_file.unlink(missing_ok=True)
        self.process = self._spawn([*self.flags, "--address-file", str(self._address_file)])

    def _spawn(self, flags: list[str]) -> Running:
        command = [sys.executable, "-m", MODULES[self.role], *flags, "--stop-with-stdin"]
        with self.log_file.open("ab") as log:
            # A session of its own: Ctrl-C reaches the launcher alone, which stops all in order.
            return subprocess.Popen(
                command, stdout=log, stderr=log, stdin=lifeline(), start_new_session=True,
                env=self.environment,
            )  # fmt: skip

    def wait_until_ready(self, deadline: float) -> None:
        """Raises StartupFailure, with the service's own words, where it ends or takes too long."""
        while not self._address_file.exists():
            if self.process is None or self.process.poll() is not None:
                raise StartupFailure(f"{self.role} did not start: {self.last_words()}")
            if time.monotonic() > deadline:
                raise StartupFailure(
                    f"{self.role} was not ready in time: {self.last_words()} (log: {self.log_file})"
                )
            time.sleep(POLL_S)
        self.address = self._address_file.read_text()

    def last_words(self) -> str:
        """The last line of the log that is not structured, or else the last one."""
        lines = self.log_file.read_text(errors="replace").splitlines() or ["no output"]
        plain = [line for line in lines if line.strip() and not line.startswith("{")]
        return (plain or lines)[-1].removeprefix(f"{self.role}: ")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal; a dead process gets none."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def stop(self) -> None:
        """SIGTERM, then, if the grace period was not enough, SIGKILL."""
        self.kill(signal.SIGTERM)
        if self.process is not None:
            try:
                self.process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                self.kill()
                self.process.wait()


def exec_role(role: str, flags: list[str]) -> None:
    """Becomes the role's process; services are never imported into this one."""
    os.execv(sys.executable, [sys.executable, "-m", MODULES[role], *flags])
