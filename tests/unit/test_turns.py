"""Roles that start together take turns: none measures while another imports or measures."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from draftloop.errors import StartupFailure
from draftloop.turns import importing, turn


async def test_turn_waits_for_running_imports(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    events: list[str] = []

    async def take(name: str) -> None:
        async with turn(lock):
            events.append(f"{name} begins")
            await asyncio.sleep(0.05)
            events.append(f"{name} ends")

    with importing(lock), importing(lock):
        waiting = [asyncio.create_task(take(name)) for name in ("first", "second")]
        await asyncio.sleep(0.1)
        assert not events
    await asyncio.gather(*waiting)
    assert [event.split()[1] for event in events] == ["begins", "ends", "begins", "ends"]
    assert {event.split()[0] for event in events} == {"first", "second"}


async def test_cancelled_wait_leaves_the_turn_to_other_roles(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with importing(lock):
        waiting = asyncio.ensure_future(turn(lock).__aenter__())
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
    async with asyncio.timeout(5), turn(lock):
        pass


async def test_lock_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    lock = tmp_path / "missing" / "lock"
    message = re.escape(f"start_lock: {lock} cannot be opened: No such file or directory")
    with pytest.raises(StartupFailure, match=message), importing(lock):
        pass
    with pytest.raises(StartupFailure, match=message):
        async with turn(lock):
            pass


async def test_no_wait_without_a_lock() -> None:
    with importing(None):
        async with turn(None), turn(None):
            pass
