"""Starts all roles on this machine, each in its own process, from one small configuration."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self

from draftloop.bundled import ONLY_IN_A_CLONE, is_missing_bundled_model
from draftloop.environment import prefix_of
from draftloop.errors import StartupFailure
from draftloop.model_info import require_model_folder, vocabulary_fingerprint
from orchestrator.config import OrchestratorSettings
from orchestrator.ports import choose_ports, port_problems
from orchestrator.role_process import POLL_S, RoleProcess
from orchestrator.stack_config import StackConfig

# Weights up to this many bytes fit into one core's own cache: more threads would lose more by
# synchronizing than they gain. For comparison: a forward of the bundled 7M draft model takes 1.2 ms
# on one core and 0.8 ms on two.
TINY_BYTES = 4 << 20
# Small, because the verifier, which may be on the same device, needs more for its KV cache.
DRAFTER_MEMORY_SHARE = 0.2


# Role settings for which the stack's configuration has already taken the environment into account.
STACK_SETTINGS = ("model", "tokenizer")
PORTS = {"verifier": "verifier_port", "drafter": "drafter_port", "orchestrator": "port"}
# Stack settings that determine a role's setting, if not the one of the same name.
DETERMINED_BY = {
    **{(role, "listen"): {"host", port} for role, port in PORTS.items()},
    ("orchestrator", "http_listen"): {"host", "http_port"},
    ("drafter", "device"): {"device", "draft_device"},
}


class Stack:
    """Verifier, drafter and orchestrator; use as a context manager."""

    role_process: type[RoleProcess] = RoleProcess

    def __init__(
        self, config: StackConfig, on_ready: Callable[[RoleProcess], None] | None = None
    ) -> None:
        self.config = config
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="draftloop-"))
        except OSError as error:
            raise StartupFailure(f"no folder for logs can be made: {error}; set TMPDIR") from None
        self.processes: dict[str, RoleProcess] = {}
        self.phrases_url = ""  # of the orchestrator, once it is known
        self._ports: dict[str, int] = {}  # ports that this stack chooses
        self._on_ready = on_ready or (lambda _: None)
        self._http_address_file = self.folder / "http.address"
        self._start_lock = self.folder / "start.lock"

    @property
    def address(self) -> str:
        """Where the public gRPC service listens."""
        return self.processes["orchestrator"].address

    @property
    def http_address(self) -> str | None:
        """Where the HTTP API listens; None if there is none."""
        if self.config.http_port is None or not self._http_address_file.exists():
            return None
        return self._http_address_file.read_text()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException as error:
            self.stop(keep_logs=not isinstance(error, KeyboardInterrupt))
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stops all roles; keeps the logs if something went wrong."""
        self.stop(keep_logs=kind is not None and not issubclass(kind, KeyboardInterrupt))

    def wait(self) -> RoleProcess:
        """Blocks until the process of any role has ended; returns it."""
        while True:
            for process in self.processes.values():
                if process.process is not None and process.process.poll() is not None:
                    return process
            time.sleep(POLL_S * 4)

    def stop(self, *, keep_logs: bool = False) -> None:
        """Stops the orchestrator first, so that no request meets a vanished service."""
        try:
            for process in reversed(self.processes.values()):
                process.stop()
        except KeyboardInterrupt:  # asked twice: kill them at once, but leave nothing behind
            for process in self.processes.values():
                process.kill()
        finally:
            self._remove_folder(with_logs=not keep_logs or not any(self.folder.glob("*.log")))

    def _remove_folder(self, *, with_logs: bool) -> None:
        """Removes the folder, or everything in it but the logs."""
        if with_logs:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for file in set(self.folder.iterdir()) - set(self.folder.glob("*.log")):
            file.unlink(missing_ok=True)

    def _start(self) -> None:
        config = self.config
        deadline = time.monotonic() + config.start_timeout_s
        if problems := [*self._missing_models(), *self._taken_ports()]:
            raise StartupFailure("\n".join(problems))
        self._require_orchestrator_flags()
        self._add("verifier", self._verifier_flags())
        if config.draft is not None:
            self._add("drafter", self._drafter_flags())
        for process in list(self.processes.values()):  # both import torch in the meantime
            self._wait_until_ready(process, deadline)
        self._add("orchestrator", self._orchestrator_flags())
        self._wait_until_ready(self.processes["orchestrator"], deadline)

    def _add(self, role: str, flags: list[str]) -> None:
        port = self._ports.get(PORTS[role])
        if port is not None:
            flags = ["--listen", f"{self.config.host}:{port}", *flags]
        secrets: dict[str, str] = {}
        if role != "verifier" and "phrases_url" in self.config.model_fields_set:
            secrets[f"{prefix_of(role)}PHRASES_URL"] = self.config.phrases_url
        self.processes[role] = self.role_process(role, flags, self.folder, secrets)
        self.processes[role].start()

    def _wait_until_ready(self, process: RoleProcess, deadline: float) -> None:
        limit = f"start_timeout_s = {self.config.start_timeout_s:g} seconds (--start-timeout-s)"
        process.wait_until_ready(deadline, limit, beside=self.processes.values())
        self._on_ready(process)

    def _require_orchestrator_flags(self) -> None:
        """Checks the orchestrator's flags before models are loaded, as it starts last."""
        placeholder_addresses = ("--verifiers", "127.0.0.1:1", "--drafters", "")
        is_given = "phrases_url" in self.config.model_fields_set
        phrases = ["--phrases-url", self.config.phrases_url] if is_given else []
        self.phrases_url = OrchestratorSettings.from_command_line(
            [*phrases, *self._orchestrator_flags(), *placeholder_addresses]
        ).phrases_url

    def _missing_models(self) -> Iterator[str]:
        folders = {"target": self.config.target, "draft": self.config.draft}
        given = {name: folder for name, folder in folders.items() if folder is not None}
        not_cloned = [name for name, folder in given.items() if is_missing_bundled_model(folder)]
        if not_cloned:
            flags = ", ".join(f"--{name}" for name in not_cloned)
            yield f"{', '.join(not_cloned)}: {ONLY_IN_A_CLONE} ({flags})"
        is_missing = bool(not_cloned)
        for name, folder in given.items():
            try:
                if name not in not_cloned:
                    require_model_folder(folder, name)
            except StartupFailure as error:
                is_missing = True
                yield str(error)
        if not is_missing:
            yield from self._vocabulary_mismatch(given)

    def _vocabulary_mismatch(self, folders: Mapping[str, Path]) -> Iterator[str]:
        """Reports models with different vocabularies, which the orchestrator would refuse later."""
        try:
            fingerprints = {
                name: vocabulary_fingerprint(folder, name) for name, folder in folders.items()
            }
        except StartupFailure as error:
            yield str(error)
            return
        if len(set(fingerprints.values())) > 1:
            yield (
                f"draft: {folders['draft']} has another vocabulary than {folders['target']} "
                f"({fingerprints['draft']}, not {fingerprints['target']}); give a draft model with "
                "the target model's tokenizer, or none (--draft)"
            )

    def _taken_ports(self) -> Iterator[str]:
        """Chooses the ports (see `ports.choose_ports`); yields the problems with them."""
        config, named = self.config, self.config.model_fields_set
        ports = {
            name: getattr(config, name)
            for role, name in PORTS.items()
            if self._passes_setting(role, "listen")
            and not (role == "drafter" and config.draft is None)
        }
        if config.http_port is not None and self._passes_setting("orchestrator", "http_listen"):
            ports["http_port"] = config.http_port
        self._ports = choose_ports(config.host, ports, named)
        yield from port_problems(config.host, self._ports, named)

    def _verifier_flags(self) -> list[str]:
        config = self.config
        flags = self._flags("verifier", model=config.target, dtype=config.dtype,
                            device=config.device, quantization=config.quantization,
                            inflate=config.inflate,
                            tensor_parallel_size=config.tensor_parallel_size)  # fmt: skip
        return [*flags, "--start-lock", str(self._start_lock), *config.verifier_flags]

    def _drafter_flags(self) -> list[str]:
        config = self.config
        device = config.draft_device or config.device
        tiny = device == "cpu" and config.draft is not None and _is_tiny(config.draft)
        flags = self._flags("drafter", model=config.draft, smaller_models=config.smaller_models,
                            dtype=config.dtype, device=device, memory_share=DRAFTER_MEMORY_SHARE,
                            **({"threads": 1} if tiny else {}))  # fmt: skip
        return [*flags, "--start-lock", str(self._start_lock), *config.drafter_flags]

    def _orchestrator_flags(self) -> list[str]:
        services = {name: process.address for name, process in self.processes.items()}
        config = self.config
        http = "" if config.http_port is None else f"{config.host}:{config.http_port}"
        flags = self._flags("orchestrator", tokenizer=config.target, http_listen=http,
                            default_strategy=config.default_strategy)  # fmt: skip
        return [
            *flags,
            *("--http-address-file", str(self._http_address_file)),
            *("--verifiers", services.get("verifier", "")),
            *("--drafters", services.get("drafter", "")),
            *config.orchestrator_flags,
        ]

    def _flags(self, role: str, **values: object) -> list[str]:
        """Flags for a role, of those values that this stack sets (`_passes_setting`)."""
        flags: list[str] = []
        for name, value in values.items():
            if self._passes_setting(role, name):
                flags += [f"--{name.replace('_', '-')}", str(value)]
        return flags

    def _passes_setting(self, role: str, name: str) -> bool:
        """Whether to pass a setting: if asked for, or if the role's environment does not set it."""
        given = DETERMINED_BY.get((role, name), {name}) & self.config.model_fields_set
        in_environment = f"{prefix_of(role)}{name.upper()}" in os.environ
        return name in STACK_SETTINGS or bool(given) or not in_environment


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into KeyboardInterrupt, so that there is one way to stop."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    # Ignored signals stay ignored: `nohup` must survive the end of the terminal.
    signals = (signal.SIGTERM, signal.SIGHUP)
    handled = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    previous = [signal.signal(number, interrupt) for number in handled]
    try:
        yield
    finally:
        for number, handler in zip(handled, previous, strict=True):
            signal.signal(number, handler)


def _is_tiny(folder: Path) -> bool:
    """Whether a model is too small for more than one thread."""
    return 0 < sum(file.stat().st_size for file in folder.glob("*.safetensors")) <= TINY_BYTES
