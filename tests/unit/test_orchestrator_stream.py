"""A stream to a service that ends while this side says farewell."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock, Mock

import pytest

from draftloop.errors import DeadlineExceeded, DraftloopError, Unavailable
from orchestrator.stream import Stream


@pytest.mark.parametrize("part", ["write", "done_writing"])
def test_closing_never_fails(part: str) -> None:
    """gRPC raises errors of its own where a deadline passes between its steps."""
    call = Mock(write=AsyncMock(), done_writing=AsyncMock())
    getattr(call, part).side_effect = RuntimeError('Failed "execute_batch"')
    asyncio.run(Stream(call, farewell=None, timeout_s=1).close())
    call.cancel.assert_called_once_with()


@pytest.mark.parametrize(
    ("left", "meant"), [(None, Unavailable), (9, Unavailable), (0, DeadlineExceeded)]
)
def test_what_ends_at_its_deadline_has_no_time_left(
    left: float | None, meant: type[DraftloopError]
) -> None:
    """Else the replica would count as failing, and the client would be told that it is gone."""
    write = AsyncMock(side_effect=asyncio.InvalidStateError)
    call = Mock(write=write, time_remaining=Mock(return_value=left))
    with pytest.raises(meant):
        asyncio.run(Stream(call, farewell=None, timeout_s=1).ask("anything"))
