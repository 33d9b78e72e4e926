"""Streams that go wrong: before their first event, in the middle, and for want of a reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from draftloop.errors import DeadlineExceeded, Overloaded
from orchestrator.gateway import stream
from orchestrator.gateway.stream import EventStream

SCOPE: dict[str, Any] = {"type": "http"}


class Peer:
    """A client that stays until `leaves` is set and takes all that it is sent."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()
        self.messages: list[Any] = []

    async def receive(self) -> Any:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


async def failing(error: Exception, *, after: int) -> AsyncGenerator[bytes, None]:
    for _ in range(after):
        yield b"data: {}\n\n"
    raise error


async def test_an_error_before_the_first_event_has_a_status_of_its_own() -> None:
    peer = Peer()
    with pytest.raises(Overloaded):
        await EventStream(failing(Overloaded("full"), after=0))(SCOPE, peer.receive, peer.send)
    assert not peer.messages


@pytest.mark.parametrize(("error", "word"), [
    (DeadlineExceeded(), b"deadline"), (RuntimeError("secret"), b"internal error"),
])  # fmt: skip
async def test_a_later_error_is_an_event(error: Exception, word: bytes) -> None:
    peer = Peer()
    await EventStream(failing(error, after=2))(SCOPE, peer.receive, peer.send)
    assert peer.messages[0]["status"] == 200
    assert b'data: {"error":' in peer.body and word in peer.body and b"secret" not in peer.body
    assert peer.body.endswith(b"data: [DONE]\n\n")
    assert not peer.messages[-1].get("more_body")


async def test_a_client_that_leaves_ends_the_work() -> None:
    peer, closed = Peer(), asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: 1\n\n"
            peer.leaves.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    await EventStream(endless())(SCOPE, peer.receive, peer.send)
    assert closed.is_set()


async def test_a_client_that_does_not_read_counts_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STALLED_S", 0.01)
    closed = asyncio.Event()

    async def stuck(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"data: 1\n\n"
        finally:
            closed.set()

    await EventStream(events())(SCOPE, Peer().receive, stuck)
    assert closed.is_set()
