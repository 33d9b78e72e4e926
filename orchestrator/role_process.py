"""One role in its own process."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from draftloop.config import GRACE_PERIOD_S
from draftloop.environment import prefix_of
from draftloop.errors import StartupFailure

POLL_S = 0.05
GRACE_FLAG = "--grace-period-s"
# Extra time after a role's own grace period, for its cleanup.
STOP_GRACE_S = 5.0
# -P: files in the user's current folder must not be imported as our modules.
PYTHON = (sys.executable, "-P", "-m")
LAST_BYTES = 1 << 16  # of a log that are read
MODULES = {
    "verifier": "verifier_service",
    "drafter": "drafter_service",
    "orchestrator": "orchestrator",
}


@functools.cache
def lifeline() -> int:
    """A pipe's read end, which reaches end of file when this process ends, even by SIGKILL."""
    reading, _writing = os.pipe()  # never written to; children do not inherit the write end
    return reading


class Running(Protocol):
    """The part of `subprocess.Popen` that a launcher needs."""

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
        command = [*PYTHON, MODULES[self.role], *flags, "--stop-with-stdin"]
        with self.log_file.open("ab") as log:
            # Its own session: Ctrl-C reaches only the launcher, which stops all roles in order.
            return subprocess.Popen(
                command, stdout=log, stderr=log, stdin=lifeline(), start_new_session=True,
                env=self.environment,
            )  # fmt: skip

    def wait_until_ready(
        self, deadline: float, limit: str = "its time", beside: Collection[RoleProcess] = ()
    ) -> None:
        """Waits until the role is ready.

        Raises StartupFailure, quoting the service's last output, if it or one of the processes
        `beside` it ends, or if it takes too long. `limit` describes the time until the deadline and
        the flag that changes it.
        """
        while not self._address_file.exists():
            for process in (self, *beside):
                process.require_running()
            if time.monotonic() > deadline:
                details = f"last said: {self.last_log_line()} (log: {self.log_file})"
                raise StartupFailure(f"{self.role} was not ready within {limit}; {details}")
            time.sleep(POLL_S)
        self.address = self._address_file.read_text()

    def require_running(self) -> None:
        """Raises StartupFailure, quoting the service's last output, if the process has ended."""
        if self.process is None or self.process.poll() is not None:
            what = "ended" if self.address else "did not start"
            raise StartupFailure(
                f"{self.role} {what}: {self.last_log_line()} (log: {self.log_file})"
            )

    def last_log_line(self) -> str:
        """The last log line that is not JSON, or else the last line.

        Adds the signal if one killed the process, as the log does not mention that.
        """
        with self.log_file.open("rb") as log:
            log.seek(max(0, self.log_file.stat().st_size - LAST_BYTES))
            lines = log.read().decode(errors="replace").splitlines() or ["no output"]
        plain = [line for line in lines if line.strip() and not line.startswith("{")]
        text = (plain or lines)[-1].removeprefix(f"{self.role}: ")
        status = self.process.poll() if self.process is not None else None
        killed = status is not None and status < 0
        return f"killed by signal {-status}; before that: {text}" if killed and status else text

    @property
    def _grace_period_s(self) -> float:
        """The role's own grace period, as set by its flags or environment."""
        value = self.environment.get(f"{prefix_of(self.role)}GRACE_PERIOD_S")
        for flag, following in pairwise([*self.flags, ""]):
            if flag == GRACE_FLAG:
                value = following
            elif flag.startswith(f"{GRACE_FLAG}="):
                value = flag.partition("=")[2]
        try:
            return float(value or GRACE_PERIOD_S)
        except ValueError:
            return GRACE_PERIOD_S

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal; a dead process gets none."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def stop(self) -> None:
        """Sends SIGTERM, and SIGKILL if the grace period was not enough."""
        self.kill(signal.SIGTERM)
        if self.process is not None:
            try:
                self.process.wait(self._grace_period_s + STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                self.kill()
                self.process.wait()


def exec_role(role: str, flags: list[str]) -> None:
    """Replaces this process by the role's, since services are never imported into this one."""
    os.execv(sys.executable, [*PYTHON, MODULES[role], *flags])
