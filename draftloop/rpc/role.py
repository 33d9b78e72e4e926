"""The life of a role's process: settings, logs, serving, and a clear word when it cannot start."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import uvloop

from draftloop import logs
from draftloop.config import ServiceSettings
from draftloop.errors import DraftloopError

Settings = TypeVar("Settings", bound=ServiceSettings)

STARTUP_FAILED = 2


def run_role(
    role: str,
    settings_type: type[Settings],
    serve: Callable[[Settings], Awaitable[None]],
    arguments: list[str] | None = None,
) -> int:
    """Runs `serve` with settings from the command line; returns the process's exit status."""
    try:
        settings = settings_type.from_command_line(sys.argv[1:] if arguments is None else arguments)
        logs.configure(role, log_format=settings.log_format, level=settings.log_level)
        logs.get(__name__).info("settings", **settings.effective())
        # A fifth less time a message than asyncio's own loop: docs/decisions/0005.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_as_coroutine(serve(settings)))
    except DraftloopError as error:
        sys.stderr.write(f"{role}: {error}\n")
        return STARTUP_FAILED
    return 0


async def _as_coroutine(awaitable: Awaitable[None]) -> None:
    await awaitable
