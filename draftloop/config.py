"""Settings of the services: defaults < environment (`DRAFTLOOP_<ROLE>_*`) < command-line flags."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict, SettingsError

from draftloop import bundled
from draftloop.environment import prefix_of, unknown_names
from draftloop.errors import StartupFailure
from draftloop.suggestion import unknown_flag_message, unknown_name_message
from draftloop.tls import ServerTls, require_together

LOOPBACK = "127.0.0.1"
DEFAULT_PORTS = {"orchestrator": 50051, "drafter": 50052, "verifier": 50053}
GRACE_PERIOD_S = 10.0
DEFAULT_HTTP_PORT = 8000
MAX_MESSAGE_BYTES = 16 << 20
COLLECTOR = re.compile(r"https?://([^\s/?#@:]+|\[[0-9a-fA-F:.]+\]):\d{1,5}/?")
REPOSITORY = Path(__file__).resolve().parent.parent


def settings_config(role: str) -> SettingsConfigDict:
    """Configuration for reading one role's settings; unknown flags are errors."""
    return SettingsConfigDict(
        env_prefix=prefix_of(role),
        extra="forbid",
        cli_prog_name=f"draftloop serve {role}",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_exit_on_error=False,  # otherwise argparse prints its whole usage first
        frozen=True,
    )


class ServiceSettings(BaseSettings):
    """Settings that every service has."""

    listen: str = Field(description="address to listen on, host:port; port 0 takes a free one")
    address_file: Path | None = Field(
        None, description="file that receives the real address once the service listens"
    )
    log_format: Literal["console", "json"] = Field("json", description="form of the log lines")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level"
    )
    grace_period_s: float = Field(
        GRACE_PERIOD_S, ge=0, le=3600, description="seconds that running requests get after SIGTERM"
    )
    stop_with_stdin: bool = Field(
        False, description="stop once standard input ends, as it does when a launcher dies"
    )
    max_message_bytes: int = Field(
        MAX_MESSAGE_BYTES, ge=1 << 16, le=1 << 30, description="largest message taken or sent"
    )
    tls_certificate: Path | None = Field(
        None, description="PEM file with this server's certificate chain; with it, all is TLS"
    )
    tls_key: Path | None = Field(None, description="PEM file with the certificate's key")
    tls_client_ca: Path | None = Field(
        None, description="PEM file with the clients' CA; clients without a certificate are refused"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _expand_path(cls, value: Any, info: ValidationInfo) -> Any:
        """Expands `~`. An empty path, as of an unset variable, would be the working directory."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if not isinstance(value, str) or Path not in (kind, *get_args(kind)):
            return value
        if not value:
            raise ValueError("must not be empty; leave it out instead")
        return at_home(value)

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        served = require_together(tls_certificate=self.tls_certificate, tls_key=self.tls_key)
        if self.tls_client_ca is not None and not served:
            raise ValueError("tls_certificate must be given together with tls_client_ca; got none")
        return self

    @property
    def server_tls(self) -> ServerTls | None:
        """TLS files of this server; None means no encryption."""
        if self.tls_certificate is None or self.tls_key is None:
            return None
        return ServerTls(
            certificate=self.tls_certificate, key=self.tls_key, client_ca=self.tls_client_ca
        )

    metrics_listen: str = Field(
        "", description="address that serves Prometheus metrics over HTTP, host:port; empty: none"
    )
    trace_endpoint: str = Field(
        "",
        description="OpenTelemetry collector for traces over OTLP gRPC, `http://host:4317`; "
        "empty: no traces. Needs the extra `tracing`",
    )
    trace_ratio: float = Field(
        1.0, ge=0, le=1, description="share of requests traced where their clients do not decide"
    )

    @field_validator("listen", "metrics_listen")
    @classmethod
    def _check_addresses(cls, listen: str, info: ValidationInfo) -> str:
        off = not listen and info.field_name == "metrics_listen"
        return listen if off else host_and_port(listen)

    @field_validator("trace_endpoint")
    @classmethod
    def _check_trace_endpoint(cls, endpoint: str) -> str:
        # gRPC would take port 443 if none is given, and ignore a path, which OTLP over HTTP has.
        if endpoint and not COLLECTOR.fullmatch(endpoint):
            raise ValueError("must be http://host:port or https://host:port, without a path")
        return endpoint

    def effective(self) -> dict[str, Any]:
        """All values for the log line at startup; secrets appear as stars."""
        return self.model_dump(mode="json")

    @classmethod
    def from_command_line(cls, arguments: list[str]) -> Self:
        """Reads flags, then environment, then defaults; the first that has a setting wins.

        Raises StartupFailure naming every setting that breaks its rule.
        """
        cls._refuse_unknown_environment()
        try:
            return CliApp.run(cls, cli_args=arguments)
        except ValidationError as error:
            raise StartupFailure(explain(error)) from None
        except SettingsError as error:
            raise StartupFailure(cls._explain_cli_error(str(error))) from None

    @classmethod
    def _explain_cli_error(cls, error_message: str) -> str:
        """One line per unknown flag; for other errors, argparse's own message."""
        message = error_message.removeprefix("error parsing CLI: ")
        words = message.removeprefix("unrecognized arguments: ").split()
        flags = [word for word in words if word.startswith("-")]
        if message.startswith("unrecognized arguments: ") and flags:
            return "\n".join(unknown_flag_message(flag, cls.model_fields) for flag in flags)
        return message

    @classmethod
    def _refuse_unknown_environment(cls) -> None:
        prefix = str(cls.model_config["env_prefix"])
        mistakes = unknown_names(prefix, cls.model_fields, os.environ)
        if mistakes:
            raise StartupFailure(
                "\n".join(
                    unknown_name_message(name, "setting", meant) for name, meant in mistakes.items()
                )
            )


Dtype = Literal["bfloat16", "float32", "float16"]
Quantization = Literal["none", "int8", "w8a8", "w4a8"]


class ModelServiceSettings(ServiceSettings):
    """Settings that both model services have."""

    model: Path = Field(description="folder of a Hugging Face causal language model")
    dtype: Dtype = Field(
        "bfloat16",
        description="element type of weights and cache",
    )
    quantization: Quantization = Field(
        "none",
        description="int8: weights of linear layers in 8 bits, half of the bytes of bfloat16; on a "
        "CPU plain decoding takes some three fifths of the time; w8a8: activations in 8 bits too, "
        "which saves as much for prompts and concurrent requests; w4a8: weights in 4 bits, with a "
        "scale for every 128 of them: a quarter of the bytes, at some loss of quality",
    )
    device: str = Field("cpu", description="cpu, cuda or cuda:N")
    torch_compile: bool = Field(
        False,
        description="compiles everything between attention calls (torch.compile): fewer kernels "
        "per step on a GPU, some tens of seconds more at startup; on a CPU it replaces our own "
        "kernels, which are faster; needs a C++ compiler, which the images do not include",
    )
    cuda_graphs: bool = Field(
        True,
        description="on a GPU, runs forwards in padded steps of 128 rows, each replayed as a CUDA "
        "graph: faster, and a row's bits do not depend on other rows; only for models of Llama's "
        "kind, without `torch_compile`; needs a C compiler, as Triton does",
    )
    tensor_parallel_size: int = Field(
        1,
        ge=1,
        le=64,
        description="devices of this machine among which every layer is split, one process per "
        "device; for a model that is too large for one GPU",
    )
    inflate: str = Field(
        "", description="cost inflation such as 300M or 1B: layers that cost but change nothing"
    )
    context_length: int | None = Field(
        None,
        ge=16,
        description="most tokens in a session; if not given, the model's own limit, or as many as "
        "`memory_share` has room for in all sessions",
    )
    memory_share: float = Field(
        0.8,
        gt=0,
        le=1,
        description="share of the memory free at startup that keys and values may take, if "
        "`context_length` is not given",
    )
    max_sessions: int = Field(16, ge=1, le=4096, description="most sessions held at once")
    max_waiting: int = Field(256, ge=0, le=65536, description="most sessions waiting for a slot")
    max_draft_nodes: int = Field(64, ge=1, le=1024, description="most nodes in one draft")
    idle_timeout_s: float = Field(
        300.0,
        gt=0,
        le=86400,
        description="seconds without a message after which a session is freed",
    )
    prefill_chunk_tokens: int | None = Field(
        None,
        ge=16,
        le=65536,
        description="most prompt tokens of one session in one forward, fewer if they would take "
        "longer than `prompt_step_s`; if not given, 256 on a CPU and 2048 on a GPU",
    )
    prefix_caching: bool = Field(True, description="compute common prefixes of prompts only once")
    prompt_step_s: float = Field(
        0.4,
        gt=0,
        le=60,
        description="longest time, in seconds, that a forward with chunks of prompts should take; "
        "the other sessions wait for it",
    )
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads for forwards")
    start_lock: Path | None = Field(
        None,
        description="lock file of roles that start together on one machine: they import side by "
        "side, then load and measure one after the other",
    )

    @field_validator("device")
    @classmethod
    def _check_device(cls, device: str) -> str:
        kind, _, index = device.partition(":")
        if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
            raise ValueError("must be cpu, cuda or cuda:N")
        return device


def broken_rules(error: ValidationError) -> Iterator[tuple[str, str, Any]]:
    """For every value that breaks a rule: its name, the rule, and the value.

    The name is empty if the rule concerns the settings as a whole.
    """
    for problem in error.errors(include_url=False):
        name = ".".join(str(part) for part in problem["loc"])
        yield name, problem["msg"].removeprefix("Value error, "), problem["input"]


def explain(error: ValidationError) -> str:
    """One line per broken rule: setting, rule and value.

    The value is not added to a rule that already mentions it: such a rule masks secrets. A rule of
    the settings as a whole has all of them as its value, secrets included.
    """
    lines = []
    for name, rule, value in broken_rules(error):
        suffix = "" if "; got " in rule or not name else f"; got {value!r}"
        lines.append(f"{name or 'settings'}: {rule}{suffix}")
    return "\n".join(lines)


def host_and_port(address: str) -> str:
    """Returns the address unchanged if it is host:port; raises ValueError otherwise."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("must be host:port with a port from 0 to 65535")
    return address


def comma_separated(text: str) -> list[str]:
    """The entries of a comma-separated setting, without empty ones."""
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def at_home(path: str | Path) -> Path:
    """The path with `~` expanded; one of an unknown user, or without any home, stays as it is."""
    return Path(os.path.expanduser(path))


def bundled_model(name: str) -> Path:
    """Folder of a model of the bundled pair: `verifier` or `drafter`."""
    return bundled.FOLDER / name
