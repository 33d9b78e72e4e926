"""Starting, announcing and stopping a gRPC server in the same way for every role."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from draftloop import logs
from draftloop.config import ServiceSettings
from draftloop.errors import StartupFailure
from draftloop.rpc.channel import KEEPALIVE_MS, shared_options
from draftloop.rpc.credentials import server_credentials
from draftloop.rpc.interceptors import ErrorInterceptor

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

POLL_S = 0.02
SENT_S = 0.5  # enough for the last message of an ended call to reach its client

log = logs.get(__name__)


class RoleServer:
    """One role's gRPC server with health, reflection and a graceful stop.

    "" is SERVING while the process lives. The service's own name is NOT_SERVING until `ready`,
    while draining, and whenever the role says so (`set_serving`).
    """

    def __init__(
        self, service_name: str, settings: ServiceSettings, *, end_calls_grace_s: float = 0.0
    ) -> None:
        """`end_calls_grace_s`: how long calls may continue after `end_calls`."""
        self._end_calls_grace_s = end_calls_grace_s
        self.service_name = service_name
        self.settings = settings
        self.address = ""
        options = [
            *shared_options(settings.max_message_bytes),
            ("grpc.so_reuseport", 0),  # otherwise a second process would silently share the port
            ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
        ]
        self._calls = ErrorInterceptor(settings.max_message_bytes)
        self.server = grpc.aio.server(interceptors=[self._calls], options=options)
        self._is_serving = False
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        names = (service_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.server)

    async def listen(self) -> None:
        """Binds and starts. Raises StartupFailure if the address cannot be bound."""
        host = self.settings.listen.rpartition(":")[0]
        try:
            port = self._bind()
        except RuntimeError as error:
            raise StartupFailure(
                f"listen: {self.settings.listen} cannot be bound, is it in use? "
                f"Stop what listens there or choose another --listen ({error})"
            ) from None
        self.address = f"{host}:{port}"
        await self._health.set("", SERVING)
        await self._health.set(self.service_name, NOT_SERVING)
        await self.server.start()
        tls = self.settings.server_tls
        log.info("listening", address=self.address, tls=tls is not None,
                 client_certificates=tls is not None and tls.client_ca is not None)  # fmt: skip

    def _bind(self) -> int:
        tls = self.settings.server_tls
        if tls is None:
            return int(self.server.add_insecure_port(self.settings.listen))
        return int(self.server.add_secure_port(self.settings.listen, server_credentials(tls)))

    async def ready(self) -> None:
        """Announces that the service accepts requests."""
        await self.set_serving(ready=True)
        if self.settings.address_file:
            write_atomically(self.settings.address_file, self.address)
        log.info("ready", address=self.address)

    async def set_serving(self, *, ready: bool) -> None:
        """Sets whether requests can be served now; watchers are notified only of changes."""
        if ready is not self._is_serving:
            self._is_serving = ready
            await self._health.set(self.service_name, SERVING if ready else NOT_SERVING)

    async def run(
        self, start: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]]
    ) -> None:
        """Listens, starts the role's components, serves until told to stop, drains, stops them."""
        async with stop_signal(with_stdin=self.settings.stop_with_stdin) as stopped:
            await self.listen()
            try:
                if await _finished_first(start(), stopped):
                    _freeze_garbage_collector()
                    await self.ready()
                    await stopped.wait()
            except BaseException:
                await self.server.stop(0)  # otherwise gRPC's complaint at exit hides the real error
                raise
            await self.drain()
            await stop()

    async def drain(self) -> None:
        """Refuses new calls, lets running ones finish within the grace period, then stops.

        Health watches and reflection calls are not waited for.
        """
        await self.set_serving(ready=False)
        grace = self.settings.grace_period_s
        log.info("draining", grace_period_s=grace)
        stopping = asyncio.create_task(self.server.stop(grace + self._end_calls_grace_s))
        await self._wait_until_idle(grace)
        self.end_calls()
        await self._wait_until_idle(self._end_calls_grace_s)
        await self.server.stop(min(grace, SENT_S))
        await stopping
        log.info("stopped")

    @property
    def busy(self) -> bool:
        """Whether requests are running."""
        return self._calls.running > 0

    def end_calls(self) -> None:
        """Ends calls that still run after the grace period, each with an error of its own."""

    async def _wait_until_idle(self, most_s: float) -> None:
        """Waits until nothing runs, for at most `most_s` seconds."""
        end = time.monotonic() + most_s
        while self.busy and time.monotonic() < end:
            await asyncio.sleep(POLL_S)


def _freeze_garbage_collector() -> None:
    """Excludes all objects that exist now from garbage collection.

    A full collection takes 0.25 s with torch imported, and would happen in the middle of a round.
    """
    gc.collect()
    gc.freeze()


def write_atomically(file: Path, text: str) -> None:
    """Writes a file atomically. Raises StartupFailure if it cannot be written."""
    partial = file.with_name(file.name + ".partial")
    try:
        partial.write_text(text)
        os.replace(partial, file)
    except OSError as error:
        raise StartupFailure(f"address file: {file} cannot be written: {error}") from None


@contextlib.asynccontextmanager
async def stop_signal(*, with_stdin: bool = False) -> AsyncIterator[asyncio.Event]:
    """Yields an event that is set by SIGTERM, SIGINT and, optionally, the end of standard input."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if with_stdin:
        threading.Thread(
            target=_call_at_end_of_stdin, args=(loop, stopped.set), daemon=True
        ).start()
    try:
        yield stopped
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _call_at_end_of_stdin(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Calls `call` on the loop when standard input ends.

    It runs on a thread, because an event loop can wait for pipes, but not for every kind of file.
    """
    while os.read(0, 1024):
        pass
    with contextlib.suppress(RuntimeError):  # the loop has been closed in the meantime
        loop.call_soon_threadsafe(call)


async def _finished_first(work: Awaitable[None], stopped: asyncio.Event) -> bool:
    """Whether `work` ended before `stopped` was set; if not, it is cancelled."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()  # raises what the start raised
        return True
    finally:
        working.cancel()
        waiting.cancel()
