"""The Python client against a scripted server: retries, timeouts, cancellation, closing, errors."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from draftloop.client import (
    NO_RETRY,
    AsyncClient,
    Client,
    DeadlineExceeded,
    DraftloopError,
    InvalidInput,
    Mismatch,
    Overloaded,
    Retry,
    TokenSource,
    Unavailable,
)
from draftloop.config import MAX_MESSAGE_BYTES
from tests.support.scripted_generation import ScriptedGeneration, serving
from tests.support.waiting import until

SOON = Retry(attempts=3, initial_backoff_s=0.01)
ServerAndAddress = tuple[ScriptedGeneration, str]


@pytest.fixture
def scripted_server() -> Iterator[ServerAndAddress]:
    """The scripted server and its address."""
    servicer = ScriptedGeneration()
    with serving(servicer) as address:
        yield servicer, address


@pytest.fixture
def client(scripted_server: ServerAndAddress) -> Iterator[Client]:
    with Client(scripted_server[1], retry=SOON) as client:
        yield client


def overloaded_error() -> Overloaded:
    return Overloaded("no room", retry_after_s=0.02)


@pytest.mark.parametrize("streamed", [False, True])
def test_failures_before_the_first_token_are_retried(
    scripted_server: ServerAndAddress, client: Client, streamed: bool
) -> None:
    servicer, _ = scripted_server
    servicer.failures = [overloaded_error(), Unavailable("no verifier", retry_after_s=0.02)]
    if streamed:
        assert "".join(piece.text for piece in client.stream("x")) == "012"
    else:
        assert client.generate("x").text == "012"
    assert servicer.calls == 3


@pytest.mark.parametrize("streamed", [False, True])
def test_call_cancelled_by_a_stopping_server_is_retried(
    scripted_server: ServerAndAddress, client: Client, streamed: bool
) -> None:
    """gRPC cancels a call that arrives as a server stops; another server may answer a retry."""
    servicer, address = scripted_server
    servicer.failures = [grpc.StatusCode.CANCELLED]
    if streamed:
        assert "".join(piece.text for piece in client.stream("x")) == "012"
    else:
        assert client.generate("x").text == "012"
    servicer.failures = [grpc.StatusCode.CANCELLED for _ in range(3)]
    with pytest.raises(Unavailable, match=f"the server at {address} stopped before"):
        client.generate("x")


def test_last_attempt_raises_the_servers_error(
    scripted_server: ServerAndAddress, client: Client
) -> None:
    servicer, _ = scripted_server
    servicer.failures = [overloaded_error() for _ in range(3)]
    with pytest.raises(Overloaded, match="no room; try again in 0.02 s") as caught:
        client.generate("x")
    assert caught.value.retry_after_s == pytest.approx(0.02)
    assert servicer.calls == 3


def test_failures_after_the_first_token_are_not_retried(
    scripted_server: ServerAndAddress, client: Client
) -> None:
    servicer, _ = scripted_server
    servicer.midway = Unavailable("the verifier died")
    texts = []
    stream = client.stream("x")
    with pytest.raises(Unavailable, match="the verifier died"):
        for piece in stream:
            texts.append(piece.text)
    assert texts == ["0"] and servicer.calls == 1
    with pytest.raises(DraftloopError, match="not read to its end"):
        _ = stream.summary


@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        (InvalidInput("top_p", "must be at most 1", 2), InvalidInput, "top_p: must be at most 1"),
        (Mismatch("other vocabularies"), Mismatch, "other vocabularies"),
        (RuntimeError("a bug"), DraftloopError, "INTERNAL: internal error"),
    ],
)
def test_permanent_errors_are_not_retried(
    scripted_server: ServerAndAddress,
    client: Client,
    failure: Exception,
    kind: type[Exception],
    words: str,
) -> None:
    servicer, _ = scripted_server
    servicer.failures = [failure]
    with pytest.raises(kind, match=words):
        client.generate("x")
    assert servicer.calls == 1


def test_client_does_not_limit_message_size() -> None:
    """The client used to limit messages itself, to the default of the servers."""
    large = MAX_MESSAGE_BYTES + 1
    with serving(ScriptedGeneration(), 2 * large) as address, Client(address) as client:
        assert client.generate("x" * large).text == "012"
        assert len(client.detokenize([large])) == large


def test_oversized_message_error_names_the_servers_setting(client: Client) -> None:
    for ask in (
        lambda: client.generate("x" * MAX_MESSAGE_BYTES),
        lambda: client.detokenize([MAX_MESSAGE_BYTES]),
    ):
        with pytest.raises(DraftloopError, match="larger than max .*--max-message-bytes of the"):
            ask()


def test_no_retry_wait_longer_than_the_timeout(
    scripted_server: ServerAndAddress, client: Client
) -> None:
    """The server's error is more informative than a deadline that passes while the client waits."""
    servicer, _ = scripted_server
    servicer.failures = [Overloaded("no room", retry_after_s=1000)]
    with pytest.raises(Overloaded):
        client.generate("x", timeout=100)
    assert servicer.calls == 1


def test_only_errors_named_by_the_retry_policy_are_retried(
    scripted_server: ServerAndAddress,
) -> None:
    servicer, address = scripted_server
    servicer.failures = [overloaded_error()]
    with (
        Client(address, retry=Retry(errors=(Unavailable,))) as client,
        pytest.raises(Overloaded),
    ):
        client.generate("x")
    assert servicer.calls == 1


def test_timeout_is_sent_as_the_servers_deadline(scripted_server: ServerAndAddress) -> None:
    servicer, address = scripted_server
    servicer.stuck = True
    with Client(address, timeout=500) as client:
        client.generate("x")
        # gRPC sends three digits of a timeout and rounds up: 500.0001 s arrive as 501 s.
        assert servicer.time_remaining is not None and 400 < servicer.time_remaining <= 501
        stream = client.stream("x", timeout=0.5)
        with pytest.raises(DeadlineExceeded, match="deadline has passed"):
            for _ in stream:
                pass
    until(lambda: servicer.running == 0)


def test_leaving_the_stream_loop_cancels_the_call(
    scripted_server: ServerAndAddress, client: Client
) -> None:
    """Leaving the loop cancels the call even if the stream object is still referenced."""
    servicer, _ = scripted_server
    servicer.stuck = True
    stream = client.stream("x")
    for piece in stream:
        assert piece.token_ids == (0,) and piece.sources == (TokenSource.DRAFT_MODEL,)
        assert servicer.running == 1
        break
    until(lambda: servicer.running == 0)
    assert stream.read() is None


def test_cancel_wakes_a_reader_in_another_thread(
    scripted_server: ServerAndAddress, client: Client
) -> None:
    servicer, _ = scripted_server
    servicer.stuck = True
    with client.stream("x") as stream:
        assert next(stream).text == "0"
        threading.Timer(0.1, stream.cancel).start()
        with pytest.raises(StopIteration):
            next(stream)
    until(lambda: servicer.running == 0)


def test_cancel_ends_the_wait_between_retries(
    scripted_server: ServerAndAddress, client: Client
) -> None:
    servicer, _ = scripted_server
    servicer.failures = [Overloaded("no room", retry_after_s=500)]
    stream = client.stream("x")

    def cancel() -> None:
        until(lambda: servicer.calls)
        time.sleep(0.2)  # so that the answer has arrived
        stream.cancel()

    with ThreadPoolExecutor(1) as pool:
        cancelled = pool.submit(cancel)
        assert list(stream) == []
        cancelled.result()
    assert servicer.calls == 1


def test_closing_the_client_fails_running_and_later_calls(
    scripted_server: ServerAndAddress,
) -> None:
    servicer, address = scripted_server
    servicer.stuck = True
    client = Client(address)
    stream = client.stream("x")
    next(stream)
    threading.Timer(0.1, client.close).start()
    with pytest.raises(DraftloopError, match="closed"):
        next(stream)
    until(lambda: servicer.running == 0)
    client.close()
    with pytest.raises(DraftloopError, match="the client is closed"):
        client.generate("x")


async def test_closing_the_async_client_fails_waiting_tasks(
    scripted_server: ServerAndAddress,
) -> None:
    """A call, a stream and waits before a retry fail; a cancelled task raises CancelledError."""
    servicer, address = scripted_server
    servicer.stuck = servicer.busy = True
    client = AsyncClient(address)
    stream = client.stream("x")
    await stream.read()
    open_stream, cancelled = client.stream("x"), client.stream("x")
    for each in (open_stream, cancelled):
        await each.read()
    waiting = asyncio.gather(
        client.generate("x"), stream.read(), open_stream.read(), return_exceptions=True
    )
    reading = asyncio.create_task(cancelled.read())
    await _until_running(servicer, 4)
    servicer.failures = [Overloaded("no room", retry_after_s=500) for _ in range(2)]
    pausing = asyncio.gather(
        client.generate("x"), client.stream("x").read(), return_exceptions=True
    )
    while servicer.failures:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)  # so that the answers have arrived
    reading.cancel()
    open_stream.cancel()
    await client.close()
    with pytest.raises(asyncio.CancelledError):
        await reading
    *closed, last = await waiting
    assert last is None
    for problem in (*closed, *await pausing):
        assert type(problem) is DraftloopError and str(problem) == "the client is closed"
    await _until_running(servicer, 0)


async def test_closed_async_client_raises_on_every_call(scripted_server: ServerAndAddress) -> None:
    for connected in (False, True):
        client = AsyncClient(scripted_server[1])
        if connected:
            await client.generate("x")
        await client.close()
        await client.close()
        for call in (client.generate("x"), client.stream("x").read(), client.tokenize("x"),
                     client.detokenize([1]), client.info()):  # fmt: skip
            with pytest.raises(DraftloopError, match="^the client is closed$"):
                await call


def test_many_threads_may_close_the_client(scripted_server: ServerAndAddress) -> None:
    """The last threads must not wait for an event loop that has stopped."""
    for _ in range(20):
        client = Client(scripted_server[1])
        closing = [threading.Thread(target=client.close, daemon=True) for _ in range(4)]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(20)
        assert not any(thread.is_alive() for thread in closing)


async def test_async_cancel_task_cancel_and_break(scripted_server: ServerAndAddress) -> None:
    servicer, address = scripted_server
    servicer.stuck = True
    async with AsyncClient(address, retry=NO_RETRY) as client:
        stream = client.stream("x")
        assert (await anext(stream)).text == "0"
        asyncio.get_running_loop().call_later(0.1, stream.cancel)
        assert await stream.read() is None

        reading = asyncio.create_task(_read_all(client))
        await _until_running(servicer, 1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await _until_running(servicer, 0)

        async for piece in client.stream("x"):
            assert piece.text == "0"
            break
        await _until_running(servicer, 0)


async def _read_all(client: AsyncClient) -> None:
    async for _ in client.stream("x"):
        pass


async def _until_running(servicer: ScriptedGeneration, count: int) -> None:
    for _ in range(1000):
        if servicer.running == count:
            return
        await asyncio.sleep(0.01)
    pytest.fail("it never came true")


def test_api_key_is_sent_with_every_call_and_never_shown(scripted_server: ServerAndAddress) -> None:
    servicer, address = scripted_server
    with Client(address, api_key="secret-1") as client:
        client.generate("x")
        assert servicer.metadata["authorization"] == "Bearer secret-1"
        assert "secret" not in repr(client) and repr(client) == f"Client({address!r})"
    with pytest.raises(InvalidInput, match="api_key") as caught:
        Client(address, api_key="secret\n2")
    assert "secret" not in str(caught.value)


def test_client_ignores_web_proxies(
    scripted_server: ServerAndAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with Client(scripted_server[1]) as client:
        client.generate("x")


def test_unreachable_server_error_says_how_to_start_one() -> None:
    with Client("127.0.0.1:1", retry=NO_RETRY) as client:
        with pytest.raises(Unavailable, match="no server at 127.0.0.1:1: start one with"):
            client.info()
        with pytest.raises(Unavailable, match="no server at 127.0.0.1:1: start one with"):
            list(client.stream("x"))


def test_server_of_another_service_raises_mismatch() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with Client(address) as client, pytest.raises(Mismatch, match="no Draftloop orchestrator"):
            client.info()
    finally:
        server.stop(None).wait()
