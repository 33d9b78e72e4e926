"""Two processes of every role on loopback, to be killed, frozen and restarted."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import psutil

from draftloop.config import bundled_model
from tests.support.measured import read_metric
from tests.support.ports import quiet_port
from tests.support.service_process import ServiceProcess
from tests.support.sessions import load_of
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import until

ROLES = {"v": "verifier", "d": "drafter", "o": "orchestrator"}
# The smaller model on both sides: the tests are about who answers, not about acceptance.
MODEL = str(bundled_model("drafter"))
MODEL_FLAGS = ["--model", MODEL, "--dtype", "float32", "--threads", "1"]
FREED_S = 60.0
# After this time every orchestrator has found a restarted replica: it asks every second, and gRPC
# has to reconnect.
JOINED_S = 3.0
RUNNING = "draftloop_num_requests_running"


class Orchestrator(ServiceProcess):
    """An orchestrator process that also listens for HTTP, at `http_address`."""

    def __init__(self, flags: Sequence[str], folder: Path) -> None:
        self.http_address = f"127.0.0.1:{quiet_port()}"
        flags = [*flags, "--http-listen", self.http_address, "--tokenizer", MODEL]
        super().__init__("orchestrator", flags, folder)


class Fleet:
    """The processes v1, v2, d1, d2 and the orchestrators; use as a context manager.

    With `behind_proxies` the orchestrators reach all other services through the proxies in `wires`.
    `flags` are additional flags by role.
    """

    def __init__(
        self,
        folder: Path,
        *,
        orchestrators: int = 2,
        behind_proxies: bool = False,
        flags: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._folder = folder
        self._flags = flags or {}
        self._orchestrators = orchestrators
        self._behind_proxies = behind_proxies
        self._ending = ExitStack()
        self.wires: dict[str, TcpProxy] = {}
        self.processes: dict[str, ServiceProcess] = {}
        self.orchestrators: list[Orchestrator] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._kill_all)
            for name in ("v1", "v2", "d1", "d2"):
                role = ROLES[name[0]]
                flags = [*MODEL_FLAGS, *self._flags.get(role, ())]
                self.processes[name] = ServiceProcess(role, flags, self._folder / name)
                if self._behind_proxies:
                    proxy = TcpProxy(self.processes[name].address)
                    self.wires[name] = stack.enter_context(proxy)
                self.processes[name].start()
            for process in self.processes.values():
                process.wait_until_ready()
            self._add_orchestrators()
            self._ending = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def _add_orchestrators(self) -> None:
        flags = ["--verifiers", self._listed("v1", "v2"), "--drafters", self._listed("d1", "d2")]
        flags += self._flags.get("orchestrator", ())
        for number in range(1, self._orchestrators + 1):
            orchestrator = Orchestrator(flags, self._folder / f"o{number}")
            self.processes[f"o{number}"] = orchestrator
            self.orchestrators.append(orchestrator)
            orchestrator.start()
        for orchestrator in self.orchestrators:
            orchestrator.wait_until_ready()

    def _listed(self, *names: str) -> str:
        return ",".join(
            self.wires[name].address if self._behind_proxies else self.processes[name].address
            for name in names
        )

    def _kill_all(self) -> None:
        for process in reversed(self.processes.values()):
            process.kill()

    def spare(self) -> list[str]:
        """The processes that may be killed: every orchestrator knows the role's other process."""
        joined = {name for name, process in self.processes.items() if _has_joined(process)}
        return sorted(name for name in joined if _twin(name) in joined)

    def revive(self, *names: str) -> None:
        """Starts the dead ones among these processes, or among all; returns at once."""
        for name in names or self.processes:
            if not self.processes[name].alive:
                self.processes[name].start()

    def wait_until_complete(self) -> None:
        """Starts what is dead; returns when all processes are ready and know one another."""
        self.revive()
        for process in self.processes.values():
            process.send(signal.SIGCONT)
            process.wait_until_ready()
        until(lambda: len(self.spare()) >= 4, 60)

    def freeze(self, name: str, seconds: float) -> None:
        """Sends SIGSTOP, and SIGCONT after `seconds`."""
        self.processes[name].send(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            self.processes[name].send(signal.SIGCONT)

    def sessions(self, name: str) -> int:
        """Number of sessions of a model service, with or without a slot, as it reports itself."""
        load = load_of(self.processes[name].address, ROLES[name[0]])
        return int(load.running_sessions + load.waiting_sessions)

    def requests(self, orchestrator: Orchestrator) -> float:
        """Number of requests that run in an orchestrator, by its metrics."""
        return read_metric(orchestrator.http_address, RUNNING)

    def wait_until_free(self) -> None:
        """Fails if a process that is ready keeps a session or a request."""
        for name, process in self.processes.items():
            if not process.ready:
                continue
            if isinstance(process, Orchestrator):
                until(lambda process=process: not self.requests(process), FREED_S)  # type: ignore[misc]
            else:
                until(lambda name=name: not self.sessions(name), FREED_S)  # type: ignore[misc]

    def log(self, role: str) -> str:
        """The logs of all processes of a role."""
        return "".join(each.log() for each in self.processes.values() if each.role == role)

    def memory(self) -> dict[str, int]:
        """Resident memory in bytes, by process name."""
        return {
            name: psutil.Process(process.pid).memory_info().rss
            for name, process in self.processes.items()
        }


class Supervisor:
    """Restarts processes that die, as a cluster would; use as a context manager."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self._fleet.revive()


def _has_joined(process: ServiceProcess) -> bool:
    return process.ready and time.monotonic() - process.ready_since > JOINED_S


def _twin(name: str) -> str:
    return name[0] + {"1": "2", "2": "1"}[name[1]]
