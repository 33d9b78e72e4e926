"""The client for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeVar, Unpack

from draftloop.client import fitting
from draftloop.client.async_stream import AsyncStream
from draftloop.client.options import Options, Prompt, parameters
from draftloop.client.retry import DEFAULT_RETRY, Retry
from draftloop.completion import Completion, DeploymentInfo
from draftloop.config import DEFAULT_PORTS, LOOPBACK
from draftloop.deadline import Deadline
from draftloop.errors import InvalidInput
from draftloop.rpc.generation_client import GenerationClient
from draftloop.tls import ClientTls

DEFAULT_ADDRESS = f"{LOOPBACK}:{DEFAULT_PORTS['orchestrator']}"

Answer = TypeVar("Answer")


class AsyncClient:
    """A client of one deployment; any number of calls may run at once.

    It connects at its first call and belongs to the event loop of that call. Use it as an async
    context manager, or call `close`. `api_key` is sent as a bearer token. `tls` says which server
    certificates to trust; None means no encryption. `timeout` bounds a whole call in seconds,
    including the waits between attempts; None sets no limit. A call's own `timeout` replaces the
    client's; None there means the client's.

    Every call raises only errors of `draftloop.errors`: InvalidInput, Overloaded, Unavailable,
    DeadlineExceeded, Mismatch, Unauthenticated, Forbidden, or their base DraftloopError.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        api_key: str | None = None,
        tls: ClientTls | None = None,
        timeout: float | None = None,
        retry: Retry = DEFAULT_RETRY,
    ) -> None:
        _require_positive(timeout)
        _require_address(address)
        self._address = address
        self._client = GenerationClient(address, api_key, tls)
        self._timeout = timeout
        self._retry = retry

    def __repr__(self) -> str:
        # Without the key.
        return f"{type(self).__name__}({self._address!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancels running calls and disconnects; waiting and later calls raise DraftloopError."""
        await self._client.close()

    async def generate(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> Completion:
        """Generates and returns the whole continuation of a text, of token ids, or of a request."""
        request = parameters(prompt, options)
        return await self._call(lambda left: self._client.generate(request, left), timeout)

    def stream(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> AsyncStream:
        """Generates the continuation in pieces, as the server commits them."""
        request = parameters(prompt, options)
        deadline = self._deadline(timeout)
        return AsyncStream(
            lambda: self._client.stream(request, deadline.remaining()),
            self._retry,
            deadline,
            self._client.pause,
        )

    async def tokenize(self, text: str, *, timeout: float | None = None) -> tuple[int, ...]:
        """Token ids of a text."""
        fitting.require_text("text", text)
        return await self._call(lambda left: self._client.tokenize(text, left), timeout)

    async def detokenize(self, token_ids: Sequence[int], *, timeout: float | None = None) -> str:
        """Text of token ids."""
        known = fitting.token_ids("token_ids", token_ids)
        return await self._call(lambda left: self._client.detokenize(known, left), timeout)

    async def info(self, *, timeout: float | None = None) -> DeploymentInfo:
        """Models, strategies and limits of the deployment."""
        return await self._call(self._client.info, timeout)

    def _deadline(self, timeout: float | None) -> Deadline:
        _require_positive(timeout)
        return Deadline.after(self._timeout if timeout is None else timeout)

    async def _call(
        self, ask: Callable[[float | None], Awaitable[Answer]], timeout: float | None
    ) -> Answer:
        """Makes a call with retries, which is safe because a failed attempt returned nothing."""
        deadline = self._deadline(timeout)

        async def attempt() -> Answer:
            return await ask(deadline.remaining())

        return await self._retry.run(attempt, deadline.remaining(), self._client.pause)


def _require_address(address: str) -> None:
    """Requires host:port; gRPC's other forms have a scheme, such as `unix:` or `dns:`."""
    scheme, _, rest = address.partition(":")
    if scheme in ("http", "https") or not (scheme and rest):
        rule = "must be host:port, as the orchestrator says where it listens for gRPC"
        raise InvalidInput("address", rule, address)
    port = address.rpartition(":")[2]
    if port.isdecimal() and not 0 < int(port) < 1 << 16:
        raise InvalidInput("address", "must have a port from 1 to 65535", address)


def _require_positive(timeout: float | None) -> None:
    if timeout is None:
        return
    fitting.require_number("timeout", timeout)
    if not timeout > 0:
        raise InvalidInput("timeout", "must be above 0 seconds", timeout)
