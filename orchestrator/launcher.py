"""All roles on this machine, each in a process of its own, from one small configuration."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftloop.config import (
    DEFAULT_HTTP_PORT,
    DEFAULT_PORTS,
    ENVIRONMENT_PREFIX,
    LOOPBACK,
    bundled_model,
    explain,
)
from draftloop.errors import StartupFailure
from draftloop.speculation import FUSED

POLL_S = 0.05
STOP_GRACE_S = 15.0
MODULES = {
    "verifier": "verifier_service",
    "drafter": "drafter_service",
    "orchestrator": "orchestrator",
}


class StackConfig(BaseModel):
    """What `draftloop up` starts; a TOML file may set any of these."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: Path = Field(bundled_model("verifier"), description="folder of the target model")
    draft: Path | None = Field(
        bundled_model("drafter"), description="folder of the draft model; none starts no drafter"
    )
    dtype: Literal["bfloat16", "float32", "float16"] = Field("bfloat16", description="element type")
    device: str = Field("cpu", description="device of both models")
    inflate: str = Field("", description="cost inflation of the target model, such as 300M")
    host: str = Field(LOOPBACK, description="address that all roles listen on")
    port: int = Field(DEFAULT_PORTS["orchestrator"], ge=0, le=65535, description="public port")
    http_port: int | None = Field(
        DEFAULT_HTTP_PORT, ge=0, le=65535, description="port of the HTTP API; none serves none"
    )
    drafter_port: int = Field(DEFAULT_PORTS["drafter"], ge=0, le=65535)
    verifier_port: int = Field(DEFAULT_PORTS["verifier"], ge=0, le=65535)
    default_strategy: str = Field(FUSED, description="strategy of a request naming none")
    phrases_url: str = Field(
        "memory://", description="phrase log; memory:// needs no Redis, and each role keeps its own"
    )
    start_timeout_s: float = Field(180.0, gt=0, description="seconds until everything is warm")
    verifier_flags: tuple[str, ...] = Field((), description="further flags of the verifier")
    drafter_flags: tuple[str, ...] = Field((), description="further flags of the drafter")
    orchestrator_flags: tuple[str, ...] = Field((), description="further flags of the orchestrator")

    @classmethod
    def read(cls, file: Path | None, **overrides: Any) -> Self:
        """The file's values under the overrides that are not None.

        Raises StartupFailure naming the file or the setting that is wrong.
        """
        values: dict[str, Any] = {}
        if file is not None:
            try:
                values = tomllib.loads(file.read_text(encoding="utf-8"))
            except (OSError, tomllib.TOMLDecodeError) as error:
                raise StartupFailure(f"config: {file} cannot be read: {error}") from None
        values.update({name: value for name, value in overrides.items() if value is not None})
        try:
            return cls(**values)
        except ValidationError as error:
            raise StartupFailure(explain(error)) from None


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


class Stack:
    """Verifier, drafter and orchestrator; use as a context manager."""

    role_process: type[RoleProcess] = RoleProcess

    def __init__(
        self, config: StackConfig, on_ready: Callable[[RoleProcess], None] | None = None
    ) -> None:
        self.config = config
        self.folder = Path(tempfile.mkdtemp(prefix="draftloop-"))
        self.processes: dict[str, RoleProcess] = {}
        self._on_ready = on_ready or (lambda _: None)
        self._http_address_file = self.folder / "http.address"
        self._start_lock = self.folder / "start.lock"

    @property
    def address(self) -> str:
        """Where the public gRPC service listens."""
        return self.processes["orchestrator"].address

    @property
    def http_address(self) -> str | None:
        """Where the HTTP API listens; None where there is none."""
        return None if self.config.http_port is None else self._http_address_file.read_text()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def restart(self, role: str) -> None:
        """Starts a dead role again on the same ports."""
        process = self.processes[role]
        port = process.address.rpartition(":")[2]
        process.flags = _with(process.flags, "--listen", f"{self.config.host}:{port}")
        if role == "orchestrator" and self.http_address:
            process.flags = _with(process.flags, "--http-listen", self.http_address)
        process.start()
        process.wait_until_ready(time.monotonic() + self.config.start_timeout_s)

    def wait(self) -> RoleProcess:
        """Blocks until some role's process has ended; returns it."""
        while True:
            for process in self.processes.values():
                if process.process is not None and process.process.poll() is not None:
                    return process
            time.sleep(POLL_S * 4)

    def stop(self) -> None:
        """Stops the orchestrator first, so that no request meets a vanished service."""
        try:
            for process in reversed(self.processes.values()):
                process.stop()
        except KeyboardInterrupt:  # asked twice: at once, then, but nothing is left behind
            for process in self.processes.values():
                process.kill()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        config = self.config
        deadline = time.monotonic() + config.start_timeout_s
        self._check_ports()
        self._add("verifier", config.verifier_port, self._verifier_flags())
        if config.draft is not None:
            self._add("drafter", config.drafter_port, self._drafter_flags())
        for process in list(self.processes.values()):  # both import torch in the meantime
            self._await(process, deadline)
        self._add("orchestrator", config.port, self._orchestrator_flags())
        self._await(self.processes["orchestrator"], deadline)

    def _add(self, role: str, port: int, flags: list[str]) -> None:
        flags = ["--listen", f"{self.config.host}:{port}", *flags]
        secrets = {}
        if role != "verifier":
            secrets = {f"{ENVIRONMENT_PREFIX}{role.upper()}_PHRASES_URL": self.config.phrases_url}
        self.processes[role] = self.role_process(role, flags, self.folder, secrets)
        self.processes[role].start()

    def _await(self, process: RoleProcess, deadline: float) -> None:
        process.wait_until_ready(deadline)
        self._on_ready(process)

    def _check_ports(self) -> None:
        """Finds an occupied port now rather than after seconds of loading."""
        config = self.config
        ports = {"verifier_port": config.verifier_port, "port": config.port}
        if config.http_port is not None:
            ports["http_port"] = config.http_port
        if config.draft is not None:
            ports["drafter_port"] = config.drafter_port
        for name, port in ports.items():
            if port and _occupied(config.host, port):
                raise StartupFailure(
                    f"{name}: {config.host}:{port} is in use; stop what listens there or choose "
                    f"another port"
                )

    def _verifier_flags(self) -> list[str]:
        config = self.config
        flags = ["--model", str(config.target), "--dtype", config.dtype, "--device", config.device]
        flags += ["--inflate", config.inflate, "--start-lock", str(self._start_lock)]
        return [*flags, *config.verifier_flags]

    def _drafter_flags(self) -> list[str]:
        config = self.config
        flags = ["--model", str(config.draft), "--dtype", config.dtype, "--device", config.device]
        if config.device == "cpu":
            # So small a model gains nothing from more threads and would lose to their hand-offs.
            flags += ["--threads", "1"]
        return [*flags, "--start-lock", str(self._start_lock), *config.drafter_flags]

    def _orchestrator_flags(self) -> list[str]:
        drafter = self.processes.get("drafter")
        http = (
            "" if self.config.http_port is None else f"{self.config.host}:{self.config.http_port}"
        )
        return [
            *("--http-listen", http),
            *("--http-address-file", str(self._http_address_file)),
            *("--verifiers", self.processes["verifier"].address),
            *("--drafters", drafter.address if drafter else ""),
            *("--tokenizer", str(self.config.target)),
            *("--default-strategy", self.config.default_strategy),
            *self.config.orchestrator_flags,
        ]


def _occupied(host: str, port: int) -> bool:
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def _with(flags: list[str], name: str, address: str) -> list[str]:
    at = flags.index(name)
    return [*flags[: at + 1], address, *flags[at + 2 :]]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turns SIGTERM into KeyboardInterrupt, so that both leave through the same door."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def exec_role(role: str, flags: list[str]) -> None:
    """Becomes the role's process; services are never imported into this one."""
    os.execv(sys.executable, [sys.executable, "-m", MODULES[role], *flags])
