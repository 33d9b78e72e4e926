"""Processes of the roles that start within seconds, however often they are started.

They are forked from one process that has imported what all of them need, since imports take most of
a start. Everything else is as with `python -m`: flags, ports, signals, exit status.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.launcher import Stack
from orchestrator.role_process import MODULES, RoleProcess

IMPORTED_BY_ALL = (
    "torch", "transformers.models.llama.modeling_llama", "verifier_service.servicer",
    "drafter_service.servicer", "draftloop.rpc.role", "draftloop.runtime.service",
    "orchestrator.servicer", "orchestrator.doors",
)  # fmt: skip

_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(list(IMPORTED_BY_ALL))


class Forked:
    """A role's process, with the part of `subprocess.Popen` that the launcher needs."""

    def __init__(
        self, role: str, flags: Sequence[str], log_file: Path, environment: Mapping[str, str]
    ) -> None:
        arguments = (MODULES[role], list(flags), str(log_file), dict(environment))
        self._process = _FORKING.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Exit status, or the negative number of the signal that ended it; None while it runs."""
        self._process.join(0)
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the exit status. Raises TimeoutExpired if the process still runs."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, sig: int, /) -> None:
        """Sends a signal, unless the process is dead."""
        if self.poll() is None:
            os.kill(self.pid, sig)


class ForkedRole(RoleProcess):
    """A role as the launcher starts it, but forked."""

    def _spawn(self, flags: list[str]) -> Forked:
        self.log_file.touch()  # at once, for readers while the process starts
        return Forked(self.role, flags, self.log_file, self.environment)


class ForkedStack(Stack):
    """All roles as `draftloop up` starts them, but forked."""

    role_process = ForkedRole

    def restart(self, role: str) -> None:
        """Starts a dead role again, on the same gRPC port."""
        process = self.processes[role]
        at = process.flags.index("--listen") + 1
        process.flags = [*process.flags[:at], process.address, *process.flags[at + 1 :]]
        process.start()
        limit = self.config.start_timeout_s
        process.wait_until_ready(time.monotonic() + limit, f"{limit:g} seconds")


def _run(module: str, flags: list[str], log_file: str, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name="__main__")


def _end_with_parent() -> None:
    """Ends the process when the test run is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
