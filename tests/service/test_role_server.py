"""The life of a role's server, in this process."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftloop.rpc.server import RoleServer
from orchestrator.config import OrchestratorSettings
from tests.support.waiting import eventually


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """Before, and behind the test again."""
    gc.unfreeze()
    yield
    gc.unfreeze()


async def test_what_a_role_has_loaded_is_kept_from_the_garbage_collector(
    tmp_path: Path, unfrozen: None
) -> None:
    """A collection that looks at all of it stops the process for a quarter of a second."""
    known = tmp_path / "address"
    loaded: list[list[int]] = []

    async def start() -> None:
        loaded.extend([] for _ in range(10_000))

    async def stop() -> None:
        loaded.clear()

    settings = OrchestratorSettings(listen="127.0.0.1:0", address_file=known)
    running = asyncio.create_task(RoleServer("any", settings).run(start, stop))
    await eventually(known.exists)
    frozen = gc.get_freeze_count()
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert frozen > 10_000 and not loaded
