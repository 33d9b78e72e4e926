"""Connections on which nobody asks for anything, or not clearly: uvicorn waits for ever for a
request's head, and goes on behind a body of two lengths."""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 60.0  # for a head from the connection's beginning, or from the first word of a later one
LENGTHS = {b"content-length", b"transfer-encoding"}  # of a body; one of them is enough


class Connection(H11Protocol):
    """Closed where a head does not come in time; behind an answer uvicorn's own limit holds."""

    _waits: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The first head may take its time from now."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._arm()

    def data_received(self, data: bytes) -> None:
        """That of a further one from its first word."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._disarm()
        elif before is None or before.response_complete:
            self._arm()

    def handle_events(self) -> None:
        """A body of two lengths ends the connection, as RFC 9112 (6.1) wants it.

        Whoever stands in front may have read it by the other one, and what follows as its end.
        """
        before = self.cycle
        super().handle_events()
        if self.cycle is not None and self.cycle is not before:
            lengths = LENGTHS & {name for name, _ in self.cycle.scope["headers"]}
            self.cycle.keep_alive = self.cycle.keep_alive and lengths != LENGTHS

    def send_400_response(self, msg: str) -> None:
        """For what is no HTTP behind a good head: whoever answers that one is too late."""
        super().send_400_response(msg)
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for."""
        self._disarm()
        super().connection_lost(exc)

    def _arm(self) -> None:
        if self._waits is None:
            self._waits = self.loop.call_later(HEAD_S, self.transport.close)

    def _disarm(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None
