"""HTTP connections that end where a request's head does not arrive or its length is ambiguous.

uvicorn itself waits for a head forever, and keeps a connection after a body with two lengths.
"""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT_S = 60.0  # for a head: from the connection's start, or from a later head's first bytes
LENGTH_HEADERS = {b"content-length", b"transfer-encoding"}  # of a body; a request may have only one


class Connection(H11Protocol):
    """A connection that is closed if a request's head does not arrive in time.

    Between an answer and the next head, uvicorn's keep-alive timeout holds.
    """

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the time limit of the first head."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Starts the time limit of a later head with its first bytes; ends it when one is whole."""
        previous = self.cycle
        super().data_received(data)
        if self.cycle is not previous:
            self._stop_timer()
        elif previous is None or previous.response_complete:
            self._start_timer()

    def handle_events(self) -> None:
        """Ends the connection after a body with two lengths, as RFC 9112 (6.1) requires.

        A proxy in front may have gone by the other length: what we would read as the next request
        may be the end of this body to it (request smuggling).
        """
        previous = self.cycle
        super().handle_events()
        if self.cycle is not None and self.cycle is not previous:
            lengths = LENGTH_HEADERS & {name for name, _ in self.cycle.scope["headers"]}
            self.cycle.keep_alive = self.cycle.keep_alive and lengths != LENGTH_HEADERS

    def send_400_response(self, msg: str) -> None:
        """Answers malformed HTTP. If a request is being answered, its answer is given up."""
        super().send_400_response(msg)
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the time limit."""
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
