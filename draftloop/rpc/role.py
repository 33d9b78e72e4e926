"""The life of a role's process: settings, logs, serving, and a clear message if it cannot start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import uvloop

from draftloop import engine_thread, logs
from draftloop.config import ServiceSettings
from draftloop.errors import DraftloopError, StartupFailure
from draftloop.interruption import INTERRUPTED, exit_on_interrupt
from draftloop.metrics_server import serving_metrics

Settings = TypeVar("Settings", bound=ServiceSettings)

STARTUP_FAILED = 2

# gRPC's core reads both when it is imported, so nothing imported here may import grpc. With gRPC's
# event engine, every message passes through one more thread on both sides: docs/decisions/0005.
GRPC_EXPERIMENTS = "-event_engine_client,-event_engine_listener"
GRPC_VERBOSITY = "ERROR"  # for gRPC's own log lines, which do not have our format


def run_role(
    role: str,
    settings_type: type[Settings],
    serve: Callable[[Settings], Coroutine[Any, Any, None]],
    arguments: list[str] | None = None,
) -> int:
    """Runs `serve` with settings from the command line; returns the process's exit status."""
    os.environ.setdefault("GRPC_EXPERIMENTS", GRPC_EXPERIMENTS)
    os.environ.setdefault("GRPC_VERBOSITY", GRPC_VERBOSITY)
    logs.have_standard_error()
    status = 0
    try:
        with exit_on_interrupt(role):
            command_line = sys.argv[1:] if arguments is None else arguments
            _run(role, settings_type.from_command_line(command_line), serve)
    except DraftloopError as error:
        sys.stderr.write(f"{role}: {error}\n")
        return STARTUP_FAILED
    except ModuleNotFoundError as error:  # the module comes with the role's extra
        extra = f"pip install 'draftloop[{role}]'"
        sys.stderr.write(f"{role}: {error.name} is not installed; {extra}\n")
        return STARTUP_FAILED
    except KeyboardInterrupt:  # while shutting down
        sys.stderr.write(f"{role}: interrupted\n")
        status = INTERRUPTED
    if engine_thread.is_running():
        os._exit(status)  # stopped while loading: not in the middle of what torch does there
    return status


def _run(
    role: str, settings: Settings, serve: Callable[[Settings], Coroutine[Any, Any, None]]
) -> None:
    logs.configure(role, log_format=settings.log_format, level=settings.log_level)
    logs.get(__name__).info("settings", **settings.effective())
    # Takes a fifth less time per message than asyncio's own loop: docs/decisions/0005.
    with (
        serving_metrics(settings.metrics_listen),
        _tracing(role, settings),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(serve(settings))


@contextlib.contextmanager
def _tracing(role: str, settings: ServiceSettings) -> Iterator[None]:
    """Exports traces if an endpoint is set. Raises StartupFailure if the extra is missing."""
    if not settings.trace_endpoint:
        yield
        return
    try:
        from draftloop.rpc.otlp import exporting
    except ImportError as error:
        raise StartupFailure(
            f"trace_endpoint: needs the extra `tracing`, pip install 'draftloop[tracing]' ({error})"
        ) from None
    with exporting(role, settings.trace_endpoint, settings.trace_ratio):
        yield
