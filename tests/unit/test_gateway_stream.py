"""Streams that fail before their first event or later, and clients that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from draftloop.errors import DeadlineExceeded, Overloaded, Unavailable
from orchestrator.gateway import stream
from orchestrator.gateway.answers import error_events, event
from orchestrator.gateway.runs import steps
from orchestrator.gateway.stream import EventStream
from orchestrator.shutdown import Shutdown
from tests.support.waiting import eventually

SCOPE: dict[str, Any] = {"type": "http"}


class FakeClient:
    """A client that stays until `disconnects` is set and accepts all messages."""

    def __init__(self) -> None:
        self.disconnects = asyncio.Event()
        self.messages: list[Any] = []

    async def receive(self) -> Any:
        await self.disconnects.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


class AdmissionFront:
    """A front that counts admitted requests."""

    admitted = 0

    def __init__(self) -> None:
        self.shutdown = Shutdown()

    @contextlib.contextmanager
    def admit(self, _caller: object, count: int) -> Iterator[None]:
        self.admitted += count
        yield
        self.admitted -= count

    def serving(self, *_args: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class CountedGeneration:
    """A generation with `count` pieces."""

    def __init__(self, count: int) -> None:
        self.finish_reason: str | None = None
        self._count = count

    async def run(self) -> AsyncGenerator[Any, None]:
        for number in range(self._count):
            await asyncio.sleep(0)
            yield number
        self.finish_reason = "stop"


async def failing_events(error: Exception, *, event_count: int) -> AsyncGenerator[bytes, None]:
    for _ in range(event_count):
        yield b"data: {}\n\n"
    raise error


async def test_error_before_the_first_event_is_raised() -> None:
    peer = FakeClient()
    with pytest.raises(Overloaded):
        await EventStream(failing_events(Overloaded("full"), event_count=0), error_events)(
            SCOPE, peer.receive, peer.send
        )
    assert not peer.messages


@pytest.mark.parametrize(("error", "expected"), [
    (DeadlineExceeded(), b"deadline"), (RuntimeError("secret"), b"internal error"),
])  # fmt: skip
async def test_error_after_the_first_event_is_an_event(error: Exception, expected: bytes) -> None:
    peer = FakeClient()
    await EventStream(failing_events(error, event_count=2), error_events)(
        SCOPE, peer.receive, peer.send
    )
    assert peer.messages[0]["status"] == 200
    assert b'data: {"error":' in peer.body and expected in peer.body and b"secret" not in peer.body
    assert peer.body.endswith(b"data: [DONE]\n\n")
    assert not peer.messages[-1].get("more_body")


class SlowEvents:
    """Events that wait for `may_begin`; then they begin, or fail with `error`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_begin, self.closed = asyncio.Event(), asyncio.Event()
        self._error = error

    async def events(self) -> AsyncGenerator[bytes, None]:
        try:
            await self.may_begin.wait()
            if self._error is not None:
                raise self._error
            yield b"data: 1\n\n"
            yield b"data: 2\n\n"
        finally:
            self.closed.set()

    async def run_until_keepalive(self, peer: FakeClient) -> asyncio.Task[None]:
        """Starts the stream and returns once the client has received keepalives."""
        answer = EventStream(self.events(), error_events)
        running = asyncio.create_task(answer(SCOPE, peer.receive, peer.send))
        await eventually(lambda: peer.body.count(stream.KEEP_ALIVE_COMMENT) > 1)
        assert peer.messages[0]["status"] == 200
        return running

    async def run_to_end(self, peer: FakeClient) -> None:
        """Runs the stream to its end."""
        running = await self.run_until_keepalive(peer)
        self.may_begin.set()
        await running


class PausingEvents(SlowEvents):
    """Events that begin at once, and then wait for `may_begin`."""

    async def events(self) -> AsyncGenerator[bytes, None]:
        yield b"data: 0\n\n"
        async for data in super().events():
            yield data


@pytest.fixture
def short_quiet_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the time until a keepalive is sent."""
    monkeypatch.setattr(stream, "KEEP_ALIVE_INTERVAL_S", 0.01)


@pytest.mark.usefixtures("short_quiet_time")
@pytest.mark.parametrize("error", [None, Unavailable("gone")])
async def test_client_receives_keepalives_between_events(error: Exception | None) -> None:
    """While reasoning is hidden, nothing is sent for minutes; proxies gave up after 60 s."""
    peer, pausing = FakeClient(), PausingEvents(error)
    await pausing.run_to_end(peer)
    sent = peer.body.replace(stream.KEEP_ALIVE_COMMENT, b"")
    assert peer.body.startswith(b"data: 0\n\n" + stream.KEEP_ALIVE_COMMENT)
    assert sent.endswith(b"data: 2\n\n" if error is None else b"data: [DONE]\n\n")
    assert not peer.messages[-1].get("more_body") and pausing.closed.is_set()
    count = len(peer.messages)
    await asyncio.sleep(0.03)
    assert len(peer.messages) == count  # nothing follows the end


@pytest.mark.usefixtures("short_quiet_time")
async def test_waiting_client_receives_keepalives() -> None:
    """Node's clients give up after 300 s without a response head; prompts may take longer."""
    peer, slow = FakeClient(), SlowEvents()
    await slow.run_to_end(peer)
    assert peer.body.replace(stream.KEEP_ALIVE_COMMENT, b"") == b"data: 1\n\ndata: 2\n\n"
    assert not peer.messages[-1].get("more_body") and slow.closed.is_set()


@pytest.mark.usefixtures("short_quiet_time")
async def test_error_after_a_keepalive_is_an_event() -> None:
    peer = FakeClient()
    await SlowEvents(DeadlineExceeded()).run_to_end(peer)
    assert b'data: {"error":' in peer.body and peer.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.usefixtures("short_quiet_time")
async def test_disconnect_while_waiting_ends_the_generation() -> None:
    peer, slow = FakeClient(), SlowEvents()
    running = await slow.run_until_keepalive(peer)
    peer.disconnects.set()
    await running
    assert slow.closed.is_set()


async def test_client_disconnect_ends_the_generation() -> None:
    peer, closed = FakeClient(), asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: 1\n\n"
            peer.disconnects.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    await EventStream(endless(), error_events)(SCOPE, peer.receive, peer.send)
    assert closed.is_set()


class EndlessGeneration:
    """A generation that never ends by itself."""

    finish_reason = None

    async def run(self) -> AsyncGenerator[Any, None]:
        while True:
            await asyncio.sleep(0.01)
            yield 0


class OutcomeFront(AdmissionFront):
    """Records the errors with which requests ended."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    @contextlib.contextmanager
    def serving(self, *_args: object) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.errors.append(error)
            raise


async def test_server_shutdown_is_not_counted_as_cancellation() -> None:
    # Generations that the server ends when it stops fail as unavailable, not as aborted.
    front = OutcomeFront()
    generations: Any = [EndlessGeneration(), EndlessGeneration()]
    running = steps(front, generations, (), None)  # type: ignore[arg-type]
    async with contextlib.aclosing(running):
        await anext(running)
        front.shutdown.begin_shutdown()
        with pytest.raises(Unavailable, match="the server stops"):
            async for _ in running:
                pass
    assert [type(error) for error in front.errors] == [Unavailable] * 2
    with pytest.raises(Unavailable, match="the server stops"):
        await anext(steps(front, generations, (), None))  # type: ignore[arg-type]


async def test_slow_reader_is_admitted_only_while_its_generations_run() -> None:
    # A finished generation gives its place free, even if its client has not read it all.
    front = AdmissionFront()
    generations: Any = [CountedGeneration(2), CountedGeneration(3)]
    running = steps(front, generations, (), None)  # type: ignore[arg-type]
    async with contextlib.aclosing(running):
        await anext(running)
        assert front.admitted == 2
        await eventually(lambda: not front.admitted)
        numbers: list[Any] = [step.piece async for step in running]
        assert numbers == [0, 1, 1, 2]


def test_events_contain_no_line_separators() -> None:
    # Some readers end lines at characters such as U+2028 and U+0085, so these are escaped.
    payload = {"text": "a\u2028b\u2029c\x85d\x0be\x1cf"}
    (line,) = event(payload).decode().removesuffix("\n\n").splitlines()
    assert json.loads(line.removeprefix("data: ")) == payload


async def test_stalled_client_is_treated_as_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STALL_TIMEOUT_S", 0.01)
    closed = asyncio.Event()

    async def blocked_send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"data: 1\n\n"
        finally:
            closed.set()

    await EventStream(events(), error_events)(SCOPE, FakeClient().receive, blocked_send)
    assert closed.is_set()
