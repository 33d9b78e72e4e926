"""A network connection that misbehaves: slow, silent without being closed, or reset."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, Self

PIECE_BYTES = 1 << 16
# Linger for zero seconds: closing sends a reset instead of ending the connection properly.
RESET = struct.pack("ii", 1, 0)


class TcpProxy:
    """Forwards a loopback port to `target`, on its own thread; use it as a context manager.

    `delay_s` is added to every piece, in both directions. While it is held, no data passes, no
    connection is closed, and new ones are accepted.
    """

    def __init__(self, target: str, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: set[asyncio.StreamWriter] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self._server: asyncio.Server | None = None
        self.address = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def hold(self) -> None:
        """Stops passing data, so that both ends wait for each other."""
        self._loop.call_soon_threadsafe(self._passing.clear)

    def release(self) -> None:
        """Passes on what was held."""
        self._loop.call_soon_threadsafe(self._passing.set)

    def reset(self) -> None:
        """Closes all connections with a reset."""
        self._do(self._reset())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._reset()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _reset(self) -> None:
        for writer in self._open:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            await self._passing.wait()
            with contextlib.suppress(OSError):
                to_reader, to_writer = await asyncio.open_connection(self._host, self._port)
                self._open.add(to_writer)
                both = (self._pass(reader, to_writer), self._pass(to_reader, writer))
                try:
                    await asyncio.gather(*both)
                finally:
                    self._open.discard(to_writer)
                    to_writer.close()
        finally:
            self._open.discard(writer)
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards data until either end is gone; then closes both."""
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                await asyncio.sleep(self.delay_s)
                await self._passing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
